"""overt/ops/point_rows/list_kernels.py: sums without atomics."""

import pytest
import torch
from kernel_tests import DEVICE, ON_GPU, assert_same_results, kernel_test
from torch import Tensor

from overt.ops.point_rows.lists import RowLists, sort_terms
from overt.ops.point_rows.plain import mix_rows_plain, spread_rows_plain
from overt.ops.point_voxels.api import make_grid

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def make_lists(index: Tensor, count: int, side: int = 0) -> RowLists:
    return sort_terms(index, count)._replace(side=side)


def corner_lists(corners: Tensor, count: int, side: int) -> RowLists:
    return make_lists(corners[:, :1], count, side)


def assert_lists_agree(
    index: Tensor, weight: Tensor | None, lists: RowLists, channels: int, dtype: torch.dtype
) -> None:
    """Values and gradients along lists, forward and as the gradient of mixing.

    The definitions in float32: torch adds up their own gradients in 16 bits.
    """
    from overt.ops.point_rows.kernels import mix_rows_fused, spread_rows_fused

    count = lists.starts.shape[0] - 1
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(count, channels, generator=generator).to(DEVICE, dtype)
    assert_same_results(
        lambda x: mix_rows_fused(x, index, weight, *lists),
        lambda x: mix_rows_plain(x.float(), index, weight).to(dtype),
        [rows],
        TOLERANCE[dtype],
    )
    results = torch.randn(len(index), channels, generator=generator).to(DEVICE, dtype)
    assert_same_results(
        lambda x: spread_rows_fused(x, index, weight, count, *lists),
        lambda x: spread_rows_plain(x.float(), index, weight, count=count).to(dtype),
        [results],
        TOLERANCE[dtype],
    )


def random_index(results: int, terms: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(terms)
    index = torch.randint(count, (results, terms), generator=generator, dtype=torch.int32)
    return index.to(DEVICE), torch.rand(results, terms, generator=generator).to(DEVICE)


def positions(points: int, side: int, seed: int = 0, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(batch, points, 3, generator=generator) * (side - 1)).to(DEVICE)


@kernel_test
@pytest.mark.parametrize(
    ("terms", "channels", "weighted", "dtype"),
    [
        (1, 1, True, torch.float32),
        (1, 5, False, torch.float32),
        (3, 100, True, torch.float32),
        (3, 64, True, torch.bfloat16),
        (1, 32, False, torch.bfloat16),
        (3, 64, True, torch.float16),
    ],
)
def test_sums_of_lists_equal_the_definitions(
    terms: int, channels: int, weighted: bool, dtype: torch.dtype
) -> None:
    index, weight = random_index(3000 if ON_GPU else 90, terms, 53)
    index[index == 7] = 8  # row 7 is read by nobody
    weight[::5] = 0
    lists = make_lists(index, 53)
    assert_lists_agree(index, weight if weighted else None, lists, channels, dtype)


@kernel_test
def test_all_terms_may_read_one_row() -> None:
    index = torch.full((700, 3), 40, dtype=torch.int32, device=DEVICE)
    weight = torch.rand(700, 3, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    assert_lists_agree(index, weight, make_lists(index, 50), 33, torch.float32)


@kernel_test
def test_terms_of_no_row_are_in_no_sum() -> None:
    from overt.ops.point_rows.kernels import spread_rows_fused

    index = torch.tensor([[1], [-1], [1], [-1]], dtype=torch.int32, device=DEVICE)
    rows = torch.tensor([[1.0], [float("nan")], [2.0], [8.0]], device=DEVICE)
    found = spread_rows_fused(rows, index, None, 3, *make_lists(index, 3))
    assert found[:, 0].tolist() == [0.0, 3.0, 0.0]


@kernel_test
def test_no_terms_are_no_error() -> None:
    from overt.ops.point_rows.kernels import spread_rows_fused

    index = torch.zeros(0, 3, dtype=torch.int32, device=DEVICE)
    weight = torch.zeros(0, 3, device=DEVICE)
    lists = make_lists(index, 5)
    rows = torch.ones(0, 4, device=DEVICE)
    assert not spread_rows_fused(rows, index, weight, 5, *lists).any()


@kernel_test
@pytest.mark.parametrize(
    ("side", "channels", "dtype"),
    [
        (4, 1, torch.float32),
        (5, 7, torch.float32),
        (3, 130, torch.float32),
        (1, 3, torch.float32),
        (3, 64, torch.bfloat16),
        (3, 64, torch.float16),
    ],
)
def test_lowest_corners_alone_give_the_gradient_of_reading(
    side: int, channels: int, dtype: torch.dtype
) -> None:
    grid = make_grid(positions(400 if ON_GPU else 60, side), side)
    lists = corner_lists(grid.corners, 2 * side**3, side)
    assert_lists_agree(grid.corners, grid.corner_weights, lists, channels, dtype)


def special_positions(kind: str, side: int) -> Tensor:
    places = positions(50, side, batch=3)
    match kind:
        case "one cell":
            places[:] = 0.25
        case "the last cell":
            places[:] = side - 1
        case "the border":
            places[:, ::2, 0] = 0
            places[:, 1::2, 1] = side - 1
            places[:, ::3, 2] = side - 1
        case "centers":
            places = places.round()
        case "NaN":
            places[1] = torch.nan
            places = places.nan_to_num(0.0)  # as `grid_coordinates` gives them
        case _:
            places[1] = places[1, :1]  # an empty grid but for one cell
    return places


@kernel_test
@pytest.mark.parametrize("kind", ["one cell", "the last cell", "the border", "centers", "NaN", ""])
def test_special_positions(kind: str) -> None:
    side = 3
    grid = make_grid(special_positions(kind, side), side)
    count = 3 * side**3
    lists = corner_lists(grid.corners, count, side)
    assert_lists_agree(grid.corners, grid.corner_weights, lists, 6, torch.float32)
    assert_lists_agree(grid.bins, grid.fractions, make_lists(grid.bins, count), 6, torch.float32)


@kernel_test
@pytest.mark.parametrize(("rows", "tile"), [(1, 64), (2, 1024), (16, 64)])
def test_every_shape_of_block_gives_the_same(
    rows: int, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from overt.ops.point_rows.list_kernels import Blocks

    monkeypatch.setattr(Blocks, "rows", rows)
    monkeypatch.setattr(Blocks, "tile", tile)
    monkeypatch.setattr(Blocks, "rows_of_cells", rows)
    monkeypatch.setattr(Blocks, "tile_of_cells", tile)
    index, weight = random_index(90, 3, 21)
    assert_lists_agree(index, weight, make_lists(index, 21), 12, torch.float32)
    grid = make_grid(positions(70, 3), 3)
    lists = corner_lists(grid.corners, 54, 3)
    assert_lists_agree(grid.corners, grid.corner_weights, lists, 12, torch.float32)
