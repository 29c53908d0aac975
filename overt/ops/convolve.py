"""Convolutions in two dimensions, whose gradient takes the quicker way on ARM processors.

There oneDNN has no fast gradient: that of torch itself, products of unfolded images, takes 0.6 of
its time. The forward pass stays with oneDNN.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

IS_ARM = platform.machine().lower() in ("aarch64", "arm64")

Pair = tuple[int, int]


def convolve(
    x: Tensor, weight: Tensor, stride: Pair, padding: Pair, bias: Tensor | None = None
) -> Tensor:
    """Images (M, C, H, W) and weights (D, C, h, w) to maps (M, D, H', W'), with a bias (D,)."""
    is_special = IS_ARM and x.device.type == "cpu" and torch.is_grad_enabled()
    if not is_special or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return F.conv2d(x, weight, bias, stride, padding)
    result: Tensor = _Convolution.apply(x, weight, bias, stride, padding)  # type: ignore[no-untyped-call]
    return result


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            gradients = torch.ops.aten.convolution_backward(
                gradient, x, weight, (len(weight),), ctx.stride, ctx.padding, (1, 1), False,
                (0, 0), 1, ctx.needs_input_grad[:3],
            )  # fmt: skip
        finally:
            torch._C._set_mkldnn_enabled(before)
        return (*gradients, None, None)
