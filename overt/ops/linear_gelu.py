"""A linear layer with the tanh form of GELU behind it, in one kernel, where no gradient is wanted.

The definition is `gelu(linear(x), approximate="tanh")`. On CUDA cuBLAS applies both to its sums
before they are rounded, which saves writing and reading the hidden numbers once.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from overt.ops import compute_type

TYPES = (torch.float16, torch.bfloat16)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """GELU (its tanh form) of a linear layer's output."""
    dtype = compute_type(x)
    if torch.is_grad_enabled() or not x.is_cuda or dtype not in TYPES:
        return F.gelu(F.linear(x, weight, bias), approximate="tanh")
    result: Tensor = _fused(x.to(dtype), weight.to(dtype), bias.to(dtype))
    return result


@torch.library.custom_op("overt::linear_gelu", mutates_args=())
def _fused(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """An operator, since a compiler that looks inside would take the two apart."""
    rows = torch._addmm_activation(bias, x.flatten(0, -2), weight.t(), use_gelu=True)
    return rows.view(*x.shape[:-1], -1)


@_fused.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))
