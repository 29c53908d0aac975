"""The product of 8-bit floats in one kernel of cuBLAS or CUTLASS."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from overt.ops.linear_fp8.plain import FLOAT8, product_plain

OLDEST = (8, 9)  # compute capability with products of 8-bit floats


@torch.library.custom_op("overt::product_fp8", mutates_args=())
def product_fp8(
    codes: Tensor, scales: Tensor, weight_codes: Tensor, weight_scales: Tensor, bias: Tensor
) -> Tensor:
    """`product_plain` in bfloat16. An operator: a compiler cannot ask for the capability."""
    if torch.cuda.get_device_capability(codes.device) < OLDEST:
        return product_plain(codes, scales, weight_codes, weight_scales, bias)
    rows = torch._scaled_mm(
        codes.flatten(0, -2),
        weight_codes.view(FLOAT8).t(),
        scale_a=scales.view(-1, 1),
        scale_b=weight_scales.view(1, -1),
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
    return rows.view(*codes.shape[:-1], -1)


@product_fp8.register_fake
def _(
    codes: Tensor, scales: Tensor, weight_codes: Tensor, weight_scales: Tensor, bias: Tensor
) -> Tensor:
    return bias.new_empty((*codes.shape[:-1], weight_codes.shape[0]))


@register_flop_formula(torch.ops.overt.product_fp8)
def _(codes: Any, scales: Any, weight_codes: Any, *_: Any, **__: Any) -> int:
    *rows, features = codes  # shapes
    return 2 * math.prod(rows) * features * int(weight_codes[0])
