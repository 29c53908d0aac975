"""overt/ops/map_norm/kernels.py against torch's instance normalization."""

import pytest
import torch
from kernel_tests import DEVICE, ON_GPU, assert_same_results, kernel_test
from torch import Tensor

from overt.ops.map_norm.plain import normalize_maps_plain

# More blocks than one, and sizes that fill none. Small enough that no number comes so close to zero
# that its sign, and with it the gradient of ReLU, is a matter of rounding.
SHAPES = [(2, 64, 24, 32), (3, 96, 7, 45), (1, 20, 2, 5)]


def fused(x: Tensor, relu: bool, residual: Tensor | None = None) -> Tensor:
    from overt.ops.map_norm.kernels import map_moments, normalized_maps

    return normalized_maps(x, *map_moments(x.detach()), relu, residual)


def exact(x: Tensor, relu: bool, residual: Tensor | None = None) -> Tensor:
    other = None if residual is None else residual.double()
    return normalize_maps_plain(x.double(), relu, other).to(x.dtype)


def maps(shape: tuple[int, ...], number: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1 + number)
    values = torch.randn(shape, generator=generator) * 3 + 20 * number
    return values.to(DEVICE).contiguous(memory_format=torch.channels_last)


@pytest.fixture
def several_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of an image for each, and several blocks of a part."""
    if not ON_GPU:
        from overt.ops.map_norm import kernels

        monkeypatch.setattr(kernels, "PROGRAMS", 12)


@kernel_test
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("relu", [True, False])
def test_the_kernels_equal_the_definition(
    shape: tuple[int, ...], relu: bool, several_programs: None
) -> None:
    assert_same_results(lambda x: fused(x, relu), lambda x: exact(x, relu), [maps(shape)], 2e-5)


@kernel_test
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("relu", [True, False])
def test_a_residual_is_added_and_has_its_gradient(
    shape: tuple[int, ...], relu: bool, several_programs: None
) -> None:
    residual = maps(shape) / 3
    assert_same_results(
        lambda x, other: fused(x, relu, other),
        lambda x, other: exact(x, relu, other),
        [maps(shape, number=1), residual],
        2e-5,
    )


@kernel_test
def test_any_layout_serves(several_programs: None) -> None:
    x = maps((2, 24, 12, 20)).contiguous()
    assert_same_results(lambda x: fused(x, True), lambda x: exact(x, True), [x], 2e-5)
    assert fused(x, True).is_contiguous(memory_format=torch.channels_last)


@kernel_test
def test_sixteen_bits_are_normalised_in_float32(several_programs: None) -> None:
    x = maps((2, 48, 16, 16), number=1).to(torch.bfloat16)
    found = fused(x, False)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(
        found.float(), normalize_maps_plain(x.float(), False), atol=1e-2, rtol=1e-2
    )


@kernel_test
def test_the_operator_keeps_its_promises_to_compile() -> None:
    from overt.ops.map_norm.kernels import map_moments, normalized_maps

    x = maps((2, 16, 4, 8)).requires_grad_()
    moments = map_moments(x.detach())
    torch.library.opcheck(normalized_maps, (x, *moments, True, None))
    torch.library.opcheck(normalized_maps, (x, *moments, True, torch.ones_like(x)))
