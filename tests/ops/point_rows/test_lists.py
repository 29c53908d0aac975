"""overt/ops/point_rows/lists.py: what is listed, and in which order."""

import pytest
import torch

from overt.ops.point_rows import lists
from overt.ops.point_rows.lists import list_lowest_corners, list_terms, sort_terms


@pytest.mark.parametrize("terms", [1, 3])
def test_each_term_is_listed_once_at_its_row_in_order(terms: int) -> None:
    generator = torch.Generator().manual_seed(terms)
    index = torch.randint(70, (1200, terms), generator=generator, dtype=torch.int32)
    index[::7] = -1  # of no row
    starts, listed, _ = sort_terms(index, 70)
    assert starts.dtype == listed.dtype == torch.int32
    for row in range(70):
        mine = listed[int(starts[row]) : int(starts[row + 1])]
        assert torch.equal(mine, (index.flatten() == row).nonzero()[:, 0].int())


def test_rows_that_nobody_reads_have_an_empty_list() -> None:
    starts, _, _ = sort_terms(torch.tensor([[1], [-1], [4]], dtype=torch.int32), 5)
    assert starts.diff().tolist() == [0, 1, 0, 0, 1]
    starts, terms, _ = sort_terms(torch.empty(0, 3, dtype=torch.int32), 2)
    assert (starts.tolist(), terms.tolist()) == ([0, 0, 0], [])


def test_of_cubes_the_lowest_corner_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "use_kernels", lambda *_, **__: True)
    corners = torch.arange(16, dtype=torch.int32).view(2, 8)
    made = list_lowest_corners(corners, 27, 3)
    assert made is not None
    assert made.side == 3
    assert made.starts.diff().nonzero()[:, 0].tolist() == [0, 8]
    assert made.terms.tolist() == [0, 1]  # results: one term each


def test_the_definitions_need_no_lists() -> None:
    index = torch.zeros(2, 1, dtype=torch.int32)
    assert list_terms(index, 3) is None
    assert list_lowest_corners(index.expand(2, 8), 27, 3) is None
