"""The random numbers that a rendered clip is made of."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Draws:
    """The random numbers of B clips, consumed in order."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers  # (B, D) uniform in 0..1
        self.taken = 0

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """(B, *shape) between the limits."""
        count = math.prod(shape)
        assert self.taken + count <= self.numbers.shape[1], "DRAWS is too small"
        part = self.numbers[:, self.taken : self.taken + count]
        self.taken += count
        return low + (high - low) * part.reshape(-1, *shape)

    def normal(self, *shape: int) -> Tensor:
        """Return (B, *shape) normal numbers, truncated at three standard deviations."""
        return math.sqrt(2) * torch.erfinv(self.uniform(*shape, low=-0.9973, high=0.9973))

    def chance(self, probability: float, *shape: int) -> Tensor:
        """Return (B, *shape): 1 with this probability, else 0."""
        return (self.uniform(*shape) < probability).float()

    def spread(self, *shape: int, median: float, deviation: float) -> Tensor:
        """(B, *shape) positive numbers, log-normal."""
        return median * torch.exp(deviation * self.normal(*shape))
