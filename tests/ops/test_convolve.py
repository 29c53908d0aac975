"""overt/ops/convolve.py: the gradient on ARM processors is that of torch."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from overt.ops import convolve as module
from overt.ops.convolve import convolve


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 2), (7, 2)])
def test_result_and_gradients_are_those_of_torch(
    kernel: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IS_ARM", True)
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


def test_an_input_without_gradient_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IS_ARM", True)
    weight = torch.ones(1, 1, 3, 3, requires_grad=True)
    convolve(torch.ones(1, 1, 4, 4), weight, (1, 1), (1, 1)).sum().backward()
    assert weight.grad is not None
    assert float(weight.grad[0, 0, 1, 1]) == 16.0
