"""A linear layer of 8-bit floats, for frozen weights: twice the products of 16-bit ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from overt.ops.dispatch import use_kernels
from overt.ops.linear_fp8.kernels import product_fp8
from overt.ops.linear_fp8.plain import linear_fp8_plain, quantize_rows


def linear_fp8(
    x: Tensor,  # (..., K)
    weight_codes: Tensor,  # (N, K) bytes of e4m3
    weight_scales: Tensor,  # (N, 1) float32
    bias: Tensor,  # (N,), of the type of `x`
    largest: Tensor | None = None,  # (..., 1): a bound on the magnitudes of each row, if known
) -> Tensor:
    """`linear_fp8_plain`, by one kernel where it can run; without a gradient.

    Rounding the inputs is plain torch, so that a compiler computes it with what comes before.
    """
    assert not (torch.is_grad_enabled() and x.requires_grad), (
        "a linear layer of 8-bit floats has no gradient; call it within torch.no_grad()"
    )
    if use_kernels("linear_fp8", x, width=math.gcd(*weight_codes.shape)):
        result: Tensor = product_fp8(*quantize_rows(x, largest), weight_codes, weight_scales, bias)
        return result
    return linear_fp8_plain(x, weight_codes, weight_scales, bias, largest)
