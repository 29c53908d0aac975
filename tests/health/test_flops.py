"""overt/health/flops.py: counted once, without a trace in the model."""

import pytest
import torch
from torch import Tensor, nn

from overt.health.flops import count_flops, peak_tflops


def test_forward_and_backward_of_linear_layers() -> None:
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False))
    inputs = torch.randn(5, 8)
    forward = 2 * 5 * (8 * 16 + 16 * 4)
    # Backward: the gradient of each weight, and of each input but the first.
    backward = forward + 2 * 5 * 16 * 4
    assert count_flops(model, lambda one: one(inputs).sum()) == forward + backward


def test_neither_gradients_nor_buffers_change() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    inputs = torch.randn(8, 4)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert count_flops(model, lambda one: one(inputs).square().sum()) > 0
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, before[name], rtol=0, atol=0)


def test_frozen_layers_cost_no_gradient_of_weights() -> None:
    def loss(model: nn.Module) -> Tensor:
        return model(torch.ones(3, 4)).sum()

    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    everything = count_flops(model, loss)
    model[0].requires_grad_(False)
    assert everything - count_flops(model, loss) == 2 * (2 * 3 * 4 * 4)


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H200", "bf16", 989.0),
        ("NVIDIA H100 PCIe", "tf32", 378.0),
        ("NVIDIA H100 80GB HBM3", "fp16", 989.0),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("NVIDIA L40S", "bf16", 362.0),
        ("Something else", "bf16", None),
    ],
)
def test_peaks(name: str, precision: str, peak: float | None) -> None:
    assert peak_tflops(name, precision) == peak
