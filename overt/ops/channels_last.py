"""What kernels of norms share: maps channels last, and the ReLU that follows as a number."""

from __future__ import annotations

import torch
from torch import Tensor


def dense(maps: Tensor) -> Tensor:
    return maps.contiguous(memory_format=torch.channels_last)


def empty_like(maps: Tensor) -> Tensor:
    return torch.empty_like(maps, memory_format=torch.channels_last)


def lowest(relu: bool) -> float:
    """A number, not a constant of the kernels: with and without ReLU they are the same."""
    return 0.0 if relu else float("-inf")
