"""overt/ops/convolve.py: results and gradients on ARM processors are those of torch."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overt.ops import onednn
from overt.ops.convolve import Conv2d, convolve, convolve_grid


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 2), (7, 2)])
def test_result_and_gradients_are_those_of_torch(
    kernel: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "IS_ARM", True)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 9, 8, generator=draw, requires_grad=True)
    weight = torch.randn(4, 3, kernel, kernel, generator=draw, requires_grad=True)
    steps, padding = (stride, stride), (kernel // 2, kernel // 2)
    results: list[Any] = []
    enabled = torch.backends.mkldnn.enabled
    bias = torch.randn(4, generator=draw, requires_grad=True)
    for y in (
        convolve(x, weight, steps, padding, bias),
        F.conv2d(x, weight, bias, steps, padding),
    ):
        results.append([y, *torch.autograd.grad(y.square().sum(), (x, weight, bias))])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert torch.backends.mkldnn.enabled == enabled


@pytest.mark.parametrize("bias", [False, True])
def test_the_layer_is_that_of_torch(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "IS_ARM", True)
    layer = Conv2d(3, 4, 3, 2, 1, bias=bias)
    usual = nn.Conv2d(3, 4, 3, 2, 1, bias=bias)
    usual.load_state_dict(layer.state_dict())
    x = torch.randn(2, 3, 9, 8, requires_grad=True)
    results: list[Any] = []
    for module in (layer, usual):
        y = module(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), (x, *module.parameters()))])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert type(results[0][0].grad_fn).__name__ == "_ConvolutionBackward"


def test_an_input_without_gradient_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "IS_ARM", True)
    weight = torch.ones(1, 1, 3, 3, requires_grad=True)
    convolve(torch.ones(1, 1, 4, 4), weight, (1, 1), (1, 1)).sum().backward()
    assert weight.grad is not None
    assert float(weight.grad[0, 0, 1, 1]) == 16.0


@pytest.mark.parametrize("size", [(5, 4, 3), (1, 2, 1), (3, 1, 6)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
def test_a_grid_is_convolved_as_by_torch(
    size: tuple[int, int, int], layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "IS_ARM", True)
    draw = torch.Generator().manual_seed(0)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    x = make(2, 3, *size).contiguous(memory_format=layout).requires_grad_()
    weight, bias = make(4, 3, 3, 3, 3).requires_grad_(), make(4).requires_grad_()
    toward = make(2, 4, *size)
    results: list[Any] = []
    for y in (convolve_grid(x, weight, bias), F.conv3d(x, weight, bias, padding=1)):
        results.append([y, *torch.autograd.grad((y * toward).sum(), (x, weight, bias))])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        plain = convolve_grid(x, weight)
    torch.testing.assert_close(plain, F.conv3d(x, weight, padding=1), rtol=1e-10, atol=1e-10)


def test_the_first_grid_of_a_network_needs_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "IS_ARM", True)
    weight = torch.ones(1, 1, 3, 3, 3, requires_grad=True)
    convolve_grid(torch.ones(1, 1, 4, 4, 4), weight).sum().backward()
    assert weight.grad is not None
    assert float(weight.grad[0, 0, 1, 1, 1]) == 64.0
    assert float(weight.grad[0, 0, 0, 0, 0]) == 27.0
