"""A linear layer with the tanh form of GELU behind it: one kernel where no gradient is wanted."""

from __future__ import annotations

import torch
from torch import Tensor

from overt.ops.dispatch import compute_type, use_kernels
from overt.ops.linear_gelu.kernels import linear_gelu_fused
from overt.ops.linear_gelu.plain import linear_gelu_plain


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`linear_gelu_plain`, by one kernel where it can run."""
    dtype = compute_type(x)
    if torch.is_grad_enabled() or not use_kernels("linear_gelu", x, dtype=dtype):
        return linear_gelu_plain(x, weight, bias)
    result: Tensor = linear_gelu_fused(x.to(dtype), weight.to(dtype), bias.to(dtype))
    return result
