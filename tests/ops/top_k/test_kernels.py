"""overt/ops/top_k/kernels.py against the definition."""

import pytest
import torch
from kernel_tests import DEVICE, kernel_test

from overt.ops.top_k.plain import top_k_plain


@kernel_test
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("shape", "count"), [((2, 3, 48), 9), ((5, 130), 4), ((1, 3), 3)])
def test_the_kernel_finds_the_largest_in_order(
    dtype: torch.dtype, shape: tuple[int, ...], count: int
) -> None:
    from overt.ops.top_k.kernels import top_k_fused

    # Distinct numbers of both signs, exact in every type.
    generator = torch.Generator().manual_seed(0)
    rows = torch.Size(shape[:-1]).numel()
    orders = [torch.randperm(shape[-1], generator=generator) for _ in range(rows)]
    scores = (torch.stack(orders).view(shape) - shape[-1] // 2).to(DEVICE, dtype)
    found = top_k_fused(scores, count)
    assert found.dtype == torch.int64
    assert torch.equal(found, top_k_plain(scores, count))


@kernel_test
def test_extremes_and_equal_numbers() -> None:
    from overt.ops.top_k.kernels import top_k_fused

    endless = float("inf")
    scores = torch.tensor([[-endless, 1.0, endless, 1.0, -2.0], [-endless] * 5, [0.0] * 5])
    scores = scores.half().to(DEVICE)
    assert top_k_fused(scores, 4).tolist() == [[2, 1, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3]]


@kernel_test
def test_a_map_of_full_size() -> None:
    from overt.ops.top_k.kernels import top_k_fused

    scores = torch.randn(3, 96 * 128, generator=torch.Generator().manual_seed(0))
    scores = scores.half().to(DEVICE)
    found = top_k_fused(scores, 9)
    # Equal numbers may come in another order; the numbers themselves are the same.
    assert torch.equal(scores.gather(-1, found), scores.topk(9).values)
    assert (found.sort(-1).values.diff(dim=-1) > 0).all()


@kernel_test
def test_the_operator_keeps_its_promises_to_compile() -> None:
    from overt.ops.top_k.kernels import top_k_fused

    torch.library.opcheck(top_k_fused, (torch.arange(12.0, device=DEVICE).half().view(2, 6), 2))
