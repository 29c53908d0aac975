"""Sums in float64 where the device has the type; Apple's GPUs (MPS) do not."""

from __future__ import annotations

import torch
from torch import Tensor

LACKING = frozenset({"mps"})  # device types without float64


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the type in which counts and losses are added up on a device."""
    return torch.float32 if device.type in LACKING else torch.float64


def exact(tensor: Tensor) -> Tensor:
    """Return the tensor in float64: on its device, or on the host where the device lacks it."""
    return (tensor.cpu() if tensor.device.type in LACKING else tensor).double()
