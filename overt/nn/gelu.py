"""The exact GELU in half the arithmetic of the error function: for 16 bits, compiled for CUDA.

There a kernel that reads and writes 16 bits waits for the error function, not for memory.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# erfc(z) = t (a1 + t (a2 + ...)) exp(-z^2) with t = 1 / (1 + p z), z >= 0: off by at most 1.5e-7
# (Abramowitz and Stegun, 7.1.26).
P = 0.3275911
COEFFICIENTS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
HALF_TYPES = (torch.float16, torch.bfloat16)


def gelu(x: Tensor) -> Tensor:
    """x times the share of a normal distribution below x."""
    if x.is_cuda and x.dtype in HALF_TYPES and torch.compiler.is_compiling():
        return gelu_short(x)  # one kernel only where it is compiled
    return F.gelu(x)


def gelu_short(x: Tensor) -> Tensor:
    """The same by a short formula, off by less than the rounding to 16 bits."""
    result: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
    return result


def _below(x: Tensor) -> tuple[Tensor, Tensor]:
    """The share of a normal distribution below x, and exp(-x^2 / 2)."""
    bell = torch.exp(x * x * -0.5)
    t = 1.0 / (x.abs() * (P * 0.5**0.5) + 1.0)
    tail = torch.full_like(t, COEFFICIENTS[-1])
    for coefficient in reversed(COEFFICIENTS[:-1]):
        tail = tail * t + coefficient
    tail = tail * t * bell * 0.5  # below -|x|
    return torch.where(x < 0, tail, 1.0 - tail), bell


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.float()
        return (wide * _below(wide)[0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        wide = x.float()
        below, bell = _below(wide)
        slope = below + wide * bell * (0.5 / torch.pi) ** 0.5
        result: Tensor = (gradient.float() * slope).to(x.dtype)
        return result
