"""A linear layer with the tanh form of GELU behind it."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from overt.ops.gelu import gelu


def linear_gelu_plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """GELU (its tanh form) of a linear layer's output."""
    return gelu(F.linear(x, weight, bias), approximate="tanh")
