"""Bilinear samples as sums of four gathered pixels.

The gradient of a gather is `index_add`, of which torch has a variant that adds in a fixed order.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor


def grid_sample_plain(
    images: Tensor,  # (M, C, H, W)
    grid: Tensor,  # (M, h, w, 2) as (x, y), -1 to 1 from edge to edge
    padding: Literal["border", "zeros"] = "zeros",
) -> Tensor:
    """See `grid_sample`."""
    count, channels, height, width = images.shape
    x, y = (((grid[..., axis] + 1) * size - 1) / 2 for axis, size in ((0, width), (1, height)))
    if padding == "border":
        x, y = x.clamp(0, width - 1), y.clamp(0, height - 1)
    else:
        # Further outside nothing is read either; the integers below stay small.
        x, y = x.clamp(-2, width + 1), y.clamp(-2, height + 1)
    left, top = x.detach().floor(), y.detach().floor()
    fraction_x, fraction_y = x - left, y - top
    first = torch.arange(count, device=images.device).view(-1, 1, 1) * (height * width)
    rows, weights = [], []
    for down, along_y in ((0, 1 - fraction_y), (1, fraction_y)):
        for right, along_x in ((0, 1 - fraction_x), (1, fraction_x)):
            column, line = left.long() + right, top.long() + down
            inside = (column >= 0) & (column < width) & (line >= 0) & (line < height)
            rows.append(torch.where(inside, first + line * width + column, 0))
            weights.append(torch.where(inside, along_x * along_y, 0.0))
    pixels = images.permute(0, 2, 3, 1).flatten(0, 2)  # (M * H * W, C)
    index, weight = torch.stack(rows, dim=-1), torch.stack(weights, dim=-1)  # (M, h, w, 4)
    mixed: Tensor = _Mix.apply(  # type: ignore[no-untyped-call]
        pixels, index.flatten(0, 2), weight.flatten(0, 2).to(images.dtype)
    )
    return mixed.view(*grid.shape[:3], channels).permute(0, 3, 1, 2)


class _Mix(torch.autograd.Function):
    """result[o] = sum over k of weight[o, k] * rows[index[o, k]], with gradients of both.

    What was gathered is not kept: the backward pass gathers it again.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, index, weight)
        return (_gather(rows, index) * weight.unsqueeze(-1)).sum(1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
        rows, index, weight = ctx.saved_tensors
        terms = gradient.unsqueeze(1) * weight.unsqueeze(-1)  # (O, K, C)
        to_rows = torch.zeros_like(rows).index_add(0, index.flatten(), terms.flatten(0, 1))
        return to_rows, None, (_gather(rows, index) * gradient.unsqueeze(1)).sum(-1)


def _gather(rows: Tensor, index: Tensor) -> Tensor:
    """The rows (R, C) of indices (O, K): (O, K, C)."""
    return rows.index_select(0, index.flatten()).view(*index.shape, -1)
