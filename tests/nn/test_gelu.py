"""overt/nn/gelu.py: the short formula is the exact GELU to 16 bits, its gradient too."""

import pytest
import torch
import torch.nn.functional as F

from overt.nn.gelu import gelu, gelu_short


def everywhere(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([torch.linspace(-12, 12, 20001), torch.tensor([0.0, 1e-20, -1e-20])]).to(dtype)


def test_it_is_off_by_less_than_a_millionth() -> None:
    x = everywhere(torch.float32).requires_grad_()
    ours, exact = gelu_short(x), F.gelu(x.double())
    assert (ours - exact).abs().max() < 1e-6
    weights = torch.linspace(-1, 1, len(x))
    (slope,) = torch.autograd.grad(ours, x, weights)
    (exact_slope,) = torch.autograd.grad(exact, x, weights.double())
    assert (slope - exact_slope).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_most_numbers_are_the_same(dtype: torch.dtype) -> None:
    x = everywhere(dtype)
    ours, exact = gelu_short(x).float(), F.gelu(x.double()).to(dtype).float()
    assert (ours == exact)[x.abs() < 4].float().mean() > 0.95
    assert torch.allclose(ours, exact, rtol=2 * torch.finfo(dtype).eps, atol=2e-7)


def test_compiled_it_is_the_same() -> None:
    x = everywhere(torch.bfloat16).requires_grad_()
    plain, compiled = gelu_short(x), torch.compile(gelu_short, backend="aot_eager")(x)
    assert torch.equal(plain, compiled)
    for result in (plain, compiled):
        result.float().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_elsewhere_it_is_the_libraries_own() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = everywhere(dtype)
        assert torch.equal(gelu(x), F.gelu(x))
