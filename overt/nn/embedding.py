"""Positions and small vectors as sines: what a transformer is given in place of raw numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sine_time_embedding(length: int, width: int) -> Tensor:
    """One row per frame, (length, width): the sines of all frequencies, then their cosines."""
    frequencies = width // 2
    exponents = torch.arange(frequencies, dtype=torch.float64) / frequencies
    angles = torch.arange(length, dtype=torch.float64)[:, None] * 10000.0**-exponents
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


def fourier_encoding(values: Tensor, frequencies: Tensor) -> Tensor:
    """Values (..., D) with their sines and cosines at F frequencies, (..., D * (1 + 2 F)).

    The order is: values, all sines, all cosines; within these, frequency by frequency.
    """
    angles = (values.unsqueeze(-2) * frequencies[:, None]).flatten(-2)  # (..., F * D)
    return torch.cat([values, angles.sin(), (angles + math.pi / 2).sin()], dim=-1)
