"""A linear layer of 8-bit floats (e4m3): its inputs and weights rounded row by row.

Letters: K features, N output features; `codes` are the rounded numbers, in units of their scale.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

FLOAT8 = torch.float8_e4m3fn  # 4 significant bits, up to 448
EXPONENT_BITS = 0x7F800000  # of a float32
SMALLEST_SCALE = 2.0**-100  # of rows that are (almost) zero: its inverse is finite


def quantize_rows(x: Tensor, largest: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Round (..., K) to `codes` of e4m3 and one scale per row, a float32 power of two, (..., 1).

    A power of two only moves the exponents, so rounding a second time changes nothing, and bfloat16
    holds `codes` times `scales` exactly. `largest` is a bound on the magnitudes of each row,
    (..., 1); by default it is their maximum, so that a row with a non-finite number has the scale
    Inf, and nothing that is multiplied with it is finite.
    """
    wide = x.float()
    if largest is None:
        largest = wide.abs().amax(-1, keepdim=True)
    # The power of two below 17/32 of the largest number, whose code is then 120 to 240: no code
    # is rounded up to the next power of two, which would call for another scale.
    power = ((largest.float() * 0.53125).view(torch.int32) & EXPONENT_BITS).view(torch.float32)
    scales = (power * 2.0**-6).clamp_min(SMALLEST_SCALE)
    return (wide * (1.0 / scales)).to(FLOAT8), scales


def dequantize(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that `codes`, also given as bytes, stand for."""
    return (codes.view(FLOAT8).float() * scales).to(dtype)


def product_plain(
    codes: Tensor,  # (..., K) e4m3
    scales: Tensor,  # (..., 1) float32
    weight_codes: Tensor,  # (N, K) bytes of e4m3
    weight_scales: Tensor,  # (N, 1) float32
    bias: Tensor,  # (N,), of the type of the result
) -> Tensor:
    """The linear layer (..., N) of rounded inputs and weights."""
    rows = dequantize(codes, scales, bias.dtype)
    return F.linear(rows, dequantize(weight_codes, weight_scales, bias.dtype), bias)


def linear_fp8_plain(
    x: Tensor,
    weight_codes: Tensor,
    weight_scales: Tensor,
    bias: Tensor,
    largest: Tensor | None = None,
) -> Tensor:
    """See `linear_fp8`."""
    return product_plain(*quantize_rows(x, largest), weight_codes, weight_scales, bias)
