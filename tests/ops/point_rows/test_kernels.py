"""overt/ops/point_rows/kernels.py against the definitions."""

import pytest
import torch
from kernel_tests import DEVICE, ON_GPU, assert_same_results, kernel_test

from overt.ops.point_rows.api import mix_rows
from overt.ops.point_rows.plain import mix_rows_plain, spread_rows_plain


@kernel_test
@pytest.mark.parametrize(("terms", "channels"), [(1, 5), (3, 64), (8, 24)])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_kernels_equal_the_definitions(terms: int, channels: int, weighted: bool) -> None:
    from overt.ops.point_rows.kernels import mix_rows_fused, spread_rows_fused

    count = 3000 if ON_GPU else 40
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(50, (count, terms), generator=generator, dtype=torch.int32).to(DEVICE)
    weight = torch.rand(count, terms, generator=generator).to(DEVICE) if weighted else None
    rows = torch.randn(50, channels, generator=generator).to(DEVICE)
    assert_same_results(
        lambda x: mix_rows_fused(x, index, weight),
        lambda x: mix_rows_plain(x, index, weight),
        [rows],
    )
    back = torch.randn(count, channels, generator=generator).to(DEVICE)
    assert_same_results(
        lambda x: spread_rows_fused(x, index, weight, 50),
        lambda x: spread_rows_plain(x, index, weight, count=50),
        [back],
    )


@kernel_test
def test_no_rows_are_no_error() -> None:
    from overt.ops.point_rows.kernels import mix_rows_fused

    index = torch.zeros(0, 1, dtype=torch.int32, device=DEVICE)
    assert mix_rows_fused(torch.ones(3, 4, device=DEVICE), index, None).shape == (0, 4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_offsets_beyond_32_bits() -> None:
    """More than 2^31 numbers: sample 26 of the published code's grouping, and beyond."""
    rows, channels = 34_000_000, 64
    values = torch.zeros(rows, channels, dtype=torch.bfloat16, device="cuda")
    values[-1] = 3.0
    index = torch.tensor([[rows - 1], [0]], dtype=torch.int32, device="cuda")
    assert mix_rows(values, index)[:, 0].tolist() == [3.0, 0.0]
