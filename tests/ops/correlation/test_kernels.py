"""overt/ops/correlation/kernels.py against the definition."""

import pytest
import torch
from correlation_cases import make_case

from overt.ops.correlation.api import correlate, shared_gradient
from overt.ops.correlation.plain import correlate_plain
from overt.ops.correlation.sizes import padded_width
from overt.ops.dispatch import HAS_TRITON

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(
    not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton"
)


@gpu
@needs_gpu
@pytest.mark.parametrize(("radius", "channels", "frames"), [(3, 128, 5), (3, 32, 37), (2, 64, 16)])
def test_kernels_equal_the_definition(radius: int, channels: int, frames: int) -> None:
    case = make_case(radius, channels, points=5, frames=frames, device="cuda")
    cells, support = case.cells.requires_grad_(), case.support.requires_grad_()
    expected = correlate_plain(*case)
    gradient = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (cells, support), gradient)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        result = correlate(cells, cells.detach().to(dtype), *case[1:])
        assert result.dtype == dtype
        assert result.shape[-1] == padded_width(radius)
        samples = (2 * radius + 1) ** 2
        result = result.unflatten(-1, (samples, -1))
        assert not result[..., samples:].any()
        result = result[..., :samples].flatten(-2)
        found = torch.autograd.grad(result.float(), (cells, support), gradient)
        for value, target in zip((result, *found), (expected, *wanted), strict=True):
            error = (value.float() - target).norm() / target.norm()
            assert error < tolerance, (dtype, float(error))


@gpu
@needs_gpu
def test_a_shared_table_gives_the_same_gradients() -> None:
    case = make_case(3, 128, points=5, frames=7, device="cuda")
    leaf, support = case.cells.requires_grad_(), case.support.requires_grad_()
    results = []
    for is_shared in (False, True):
        cells = leaf * 1.0
        shared = shared_gradient(cells) if is_shared else None
        used = cells.detach()
        both = [correlate(cells, used, *case[1:], shared).sin().sum() for _ in range(2)]
        total = both[0] + 2 * both[1] + cells.sum()
        results.append(torch.autograd.grad(total, (leaf, support)))
    for one, other in zip(*results, strict=True):  # additions in any order
        assert (one - other).norm() < 1e-5 * one.norm()
