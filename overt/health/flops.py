"""Floating-point operations of a step, counted once, and the utilization of the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

# Dense peaks in 10^12 operations a second as the makers state them: 16 bit, TF32, FP32. The first
# name that is part of the device's name counts.
PEAKS = {
    "B200": (2250.0, 1125.0, 75.0),
    "GH200": (989.0, 494.0, 67.0),
    "H200": (989.0, 494.0, 67.0),
    "H100 PCIe": (756.0, 378.0, 51.0),
    "H100": (989.0, 494.0, 67.0),
    "A100": (312.0, 156.0, 19.5),
    "L40S": (362.0, 183.0, 91.6),
    "L4": (121.0, 60.0, 30.3),
    "A10": (125.0, 62.5, 31.2),
    "RTX 4090": (165.2, 82.6, 82.6),
    "RTX 3090": (71.0, 35.6, 35.6),
}


def peak_tflops(device_name: str, precision: str) -> float | None:
    """Return the peak of a device with `training.precision`; None if unknown."""
    for name, (half, tf32, full) in PEAKS.items():
        if name in device_name:
            return {"bf16": half, "fp16": half, "tf32": tf32}.get(precision, full)
    return None


def count_flops(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> int:
    """Operations of the matrix products, convolutions and attentions of a forward and a backward.

    Neither gradients nor buffers of the model are changed. Operations without a formula (Triton
    kernels, anything element-wise) count as none.
    """
    with buffers_kept(model), FlopCounterMode(display=False) as counter, torch.enable_grad():
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        torch.autograd.grad(loss(model), parameters, allow_unused=True)
    total: int = counter.get_total_flops()
    return total


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Restore the buffers afterward."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
