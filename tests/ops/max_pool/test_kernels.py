"""overt/ops/max_pool/kernels.py against torch's own."""

import pytest
import torch
from kernel_tests import DEVICE, ON_GPU, kernel_test
from torch.nn import functional as F


def images(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Many equal numbers, as after a ReLU, channels last."""
    generator = torch.Generator().manual_seed(sum(shape))
    numbers = torch.randint(-3, 6, shape, generator=generator).relu().to(DEVICE, dtype)
    return numbers.contiguous(memory_format=torch.channels_last)


@kernel_test
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 2, 7, 10), (2, 70, 9, 5), (1, 1, 1, 1)])
@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), (2, 3, 1), (5, 2, 2)]
)
def test_values_and_gradients_are_those_of_torch(
    shape: tuple[int, ...], size: int, stride: int, padding: int
) -> None:
    from overt.ops.max_pool.kernels import max_pool_fused

    if min(shape[2:]) + 2 * padding < size:
        pytest.skip("no window fits")
    given = images(shape).requires_grad_()
    expected = F.max_pool2d(given, size, stride, padding)
    found, _ = max_pool_fused(given, size, stride, padding, True)
    assert torch.equal(found, expected)
    assert found.is_contiguous(memory_format=torch.channels_last)
    generator = torch.Generator().manual_seed(0)
    # Whole numbers: their sums are exact in any order.
    weights = torch.randint(-9, 9, expected.shape, generator=generator).float().to(DEVICE)
    (wanted,) = torch.autograd.grad(expected, given, weights)
    (gradient,) = torch.autograd.grad(found, given, weights)
    assert torch.equal(gradient, wanted)
    alone, nothing = max_pool_fused(given.detach(), size, stride, padding, False)
    assert torch.equal(alone, expected)
    assert nothing.numel() == 0


@kernel_test
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16] if ON_GPU else [torch.float16])
def test_in_16_bits_sums_of_gradients_are_rounded_once(dtype: torch.dtype) -> None:
    from overt.ops.max_pool.kernels import max_pool_fused

    given = images((2, 5, 6, 6), dtype).requires_grad_()
    found, _ = max_pool_fused(given, 3, 1, 1, True)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    exact = given.detach().float().requires_grad_()
    (wanted,) = torch.autograd.grad(F.max_pool2d(exact, 3, 1, 1), exact, weights.float())
    (gradient,) = torch.autograd.grad(found, given, weights)
    torch.testing.assert_close(gradient, wanted.to(dtype))


@kernel_test
def test_nan_and_infinity_come_through_as_on_a_cpu() -> None:
    """Torch on CUDA has no gradient for windows of nothing but negative infinity."""
    from overt.ops.max_pool.kernels import max_pool_fused

    given = images((1, 2, 6, 6))
    given[0, 0, 1, 1] = float("nan")
    given[0, 1] = float("-inf")
    on_cpu = given.cpu().requires_grad_()
    given.requires_grad_()
    expected = F.max_pool2d(on_cpu, 3, 2, 1)
    found, _ = max_pool_fused(given, 3, 2, 1, True)
    torch.testing.assert_close(found.cpu(), expected, equal_nan=True)
    (wanted,) = torch.autograd.grad(expected.sum(), on_cpu)
    (gradient,) = torch.autograd.grad(found.sum(), given)
    assert torch.equal(gradient.cpu(), wanted)


@kernel_test
def test_the_operator_keeps_its_promises_to_compile() -> None:
    from overt.ops.max_pool.kernels import max_pool_fused

    given = images((2, 3, 6, 8)).requires_grad_()
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    for keeps in (True, False):
        torch.library.opcheck(max_pool_fused, (given, 3, 2, 1, keeps), test_utils=checks)
