"""overt/ops/group_norm/kernels.py against torch's group normalization."""

import pytest
import torch
from kernel_tests import DEVICE, ON_GPU, assert_same_results, kernel_test
from torch import Tensor

from overt.ops.group_norm.plain import group_norm_plain

# Channels, groups and pixels that fill no tile, slab or power of two, and some that do. Small
# enough that no number comes so close to zero that its sign, and with it the gradient of ReLU, is a
# matter of rounding.
SHAPES = [
    ((2, 64, 24, 32), 16),
    ((3, 96, 7, 45), 6),
    ((1, 20, 2, 5), 5),
    ((2, 21, 3, 11), 7),
    ((2, 10, 4, 4), 1),
    ((1, 7, 6, 6), 7),
    ((2, 300, 1, 3), 2),
    ((3, 8, 1, 1), 2),
]
EPS = 1e-3


def fused(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, relu: bool, residual: Tensor | None = None
) -> Tensor:
    from overt.ops.group_norm.kernels import group_norm_fused

    return group_norm_fused(x, weight, bias, groups, EPS, relu, residual)[0]


def exact(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, relu: bool, residual: Tensor | None = None
) -> Tensor:
    other = None if residual is None else residual.double()
    parameters = (weight.double(), bias.double())
    return group_norm_plain(x.double(), *parameters, groups, EPS, relu, other).to(x.dtype)


def maps(shape: tuple[int, ...], number: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1 + number)
    values = torch.randn(shape, generator=generator) * 3 + 20 * number
    return values.to(DEVICE).contiguous(memory_format=torch.channels_last)


def parameters(channels: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(channels, generator=generator).to(DEVICE) for _ in range(2)]


@pytest.fixture
def several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles of a slab, and several slabs of an image."""
    if not ON_GPU:
        from overt.ops.group_norm import kernels

        monkeypatch.setattr(kernels, "TILE", 1024)


@kernel_test
@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
@pytest.mark.parametrize("relu", [True, False])
def test_the_kernels_equal_the_definition(
    shape: tuple[int, ...], groups: int, relu: bool, several_tiles: None
) -> None:
    assert_same_results(
        lambda *inputs: fused(*inputs, groups, relu),
        lambda *inputs: exact(*inputs, groups, relu),
        [maps(shape, number=1), *parameters(shape[1])],
        3e-5,
    )


@kernel_test
@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
@pytest.mark.parametrize("relu", [True, False])
def test_a_residual_is_added_and_has_its_gradient(
    shape: tuple[int, ...], groups: int, relu: bool, several_tiles: None
) -> None:
    assert_same_results(
        lambda x, weight, bias, other: fused(x, weight, bias, groups, relu, other),
        lambda x, weight, bias, other: exact(x, weight, bias, groups, relu, other),
        [maps(shape, number=1), *parameters(shape[1]), maps(shape) / 3],
        3e-5,
    )


@kernel_test
def test_any_layout_serves(several_tiles: None) -> None:
    x, residual = maps((2, 24, 12, 20), number=1).contiguous(), maps((2, 24, 12, 20)).contiguous()
    assert_same_results(
        lambda x, weight, bias, other: fused(x, weight, bias, 6, True, other),
        lambda x, weight, bias, other: exact(x, weight, bias, 6, True, other),
        [x, *parameters(24), residual],
        3e-5,
    )
    assert fused(x, *parameters(24), 6, True).is_contiguous(memory_format=torch.channels_last)


@kernel_test
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_normalized_in_float32(
    dtype: torch.dtype, added: bool, several_tiles: None
) -> None:
    shape = (2, 48, 16, 16)
    x, other = maps(shape, number=1).to(dtype), maps(shape).to(dtype)
    assert fused(x, *parameters(48), 6, False).dtype == dtype
    inputs = [x, *parameters(48), *([other] if added else [])]
    assert_same_results(
        lambda x, weight, bias, *rest: fused(x, weight, bias, 6, True, *rest),
        lambda x, weight, bias, *rest: exact(x, weight, bias, 6, True, *rest),
        inputs,
        1e-2,
    )


@kernel_test
def test_a_large_mean_costs_no_digits(several_tiles: None) -> None:
    """Also where the first pixels are far from the others."""
    x = maps((2, 16, 32, 32)) + 1000
    x[:, :, :2] += 300
    weight, bias = parameters(16)
    found, expected = fused(x, weight, bias, 4, False), exact(x, weight, bias, 4, False)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


@kernel_test
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_numbers_are_passed_on(value: float) -> None:
    x = maps((2, 16, 4, 8))
    x[1, 3, 2, 2] = value
    found = fused(x, *parameters(16), 4, True)
    assert found[1, :4].isnan().all()
    assert found[0].isfinite().all()
    assert found[1, 4:].isfinite().all()


@kernel_test
def test_a_residual_may_have_another_dtype() -> None:
    x = maps((2, 16, 4, 8)).bfloat16().requires_grad_()
    residual = maps((2, 16, 4, 8)).requires_grad_()
    for relu in (True, False):
        result = fused(x, *parameters(16), 4, relu, residual)
        assert result.dtype == torch.bfloat16
        gradients = torch.autograd.grad(result.sum(), (x, residual))
        assert [each.dtype for each in gradients] == [torch.bfloat16, torch.float32]


@kernel_test
def test_the_operator_keeps_its_promises_to_compile() -> None:
    from overt.ops.group_norm.kernels import group_norm_fused

    x = maps((2, 16, 4, 8)).requires_grad_()
    weight, bias = (each.requires_grad_() for each in parameters(16))
    common = (x, weight, bias, 4, EPS, True)
    torch.library.opcheck(group_norm_fused, (*common, None))
    torch.library.opcheck(group_norm_fused, (*common, torch.ones_like(x, requires_grad=True)))
