"""Bilinear samples of images at any positions: torch's, or gathered where bits must repeat."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from overt.ops.dispatch import replaces
from overt.ops.grid_sample.plain import grid_sample_plain


def grid_sample(
    images: Tensor,  # (M, C, H, W)
    grid: Tensor,  # (M, h, w, 2) as (x, y), -1 to 1 from edge to edge
    padding: Literal["border", "zeros"] = "zeros",
) -> Tensor:
    """`torch.nn.functional.grid_sample`, bilinear, with `align_corners=False`: (M, C, h, w)."""
    if replaces("grid_sample", images, grid):
        return grid_sample_plain(images, grid, padding)
    return F.grid_sample(images, grid, padding_mode=padding, align_corners=False)
