"""A linear layer and its GELU in one kernel of cuBLAS.

It applies both to its sums before they are rounded, and the hidden numbers are written once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula


@torch.library.custom_op("overt::linear_gelu", mutates_args=())
def linear_gelu_fused(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """See `linear_gelu`. An operator, since a compiler that looks inside would split it in two."""
    rows = torch._addmm_activation(bias, x.flatten(0, -2), weight.t(), use_gelu=True)
    return rows.view(*x.shape[:-1], -1)


@linear_gelu_fused.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@register_flop_formula(torch.ops.overt.linear_gelu)
def _(x: Any, weight: Any, *_: Any, **__: Any) -> int:
    *rows, features = x  # shapes
    return 2 * math.prod(rows) * features * int(weight[0])
