"""overt/ops/point_rows: sums by index, and their transpose."""

import pytest
import torch

from overt.ops.point_rows.api import mix_rows, spread_rows


def make_case(terms: int, channels: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(terms)
    rows = torch.randn(9, channels, generator=generator)
    index = torch.randint(9, (14, terms), generator=generator, dtype=torch.int32)
    return rows, index, torch.rand(14, terms, generator=generator)


def as_matrix(index: torch.Tensor, weight: torch.Tensor, rows: int) -> torch.Tensor:
    matrix = torch.zeros(len(index), rows)
    for result, (numbers, shares) in enumerate(zip(index, weight, strict=True)):
        for number, share in zip(numbers.tolist(), shares, strict=True):
            matrix[result, number] += share
    return matrix


@pytest.mark.parametrize("terms", [1, 3, 8])
@pytest.mark.parametrize("weighted", [True, False])
def test_both_are_products_with_one_sparse_matrix(terms: int, weighted: bool) -> None:
    rows, index, weight = make_case(terms)
    given = weight if weighted else None
    matrix = as_matrix(index, weight if weighted else torch.ones_like(weight), 9)
    torch.testing.assert_close(mix_rows(rows, index, given), matrix @ rows)
    back = torch.randn(14, 5)
    torch.testing.assert_close(spread_rows(back, index, given, count=9), matrix.T @ back)


def test_the_result_has_the_type_of_the_rows_and_float32_sums() -> None:
    rows, index, weight = make_case(8)
    low = rows.bfloat16()
    mixed = mix_rows(low, index, weight)
    assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed, mix_rows(low.float(), index, weight).bfloat16())
    spread = spread_rows(mixed, index, weight, count=9)
    exact = spread_rows(mixed.float(), index, weight, count=9)
    torch.testing.assert_close(spread, exact.bfloat16())
