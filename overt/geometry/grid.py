"""Pixels of images: regular grids of points, and the scale between two image sizes."""

from __future__ import annotations

import torch
from torch import Tensor


def point_grid(
    size: int,
    extent: tuple[float, float],  # (height, width) pixels
    centre: tuple[float, float] | None = None,  # (y, x) pixels; the middle of the extent
    device: torch.device | str | None = None,
) -> Tensor:
    """`size` x `size` points (x, y) over the extent, row by row, (size * size, 2).

    A margin of 1/64 of the width is kept on all four sides, and 1/64 of the height above and below
    an extent that is not as high as that. With a centre, the points may lie outside an image.
    """
    height, width = extent
    middle_y, middle_x = centre if centre is not None else (height / 2, width / 2)
    if size == 1:
        return torch.tensor([[middle_x, middle_y]], device=device)
    margin_x = width / 64
    # CoTracker's rule; only in a very wide video it would put the points outside.
    margin_y = margin_x if margin_x <= height else height / 64
    half_x, half_y = width / 2 - margin_x, height / 2 - margin_y
    x = torch.linspace(middle_x - half_x, middle_x + half_x, size, device=device)
    y = torch.linspace(middle_y - half_y, middle_y + half_y, size, device=device)
    rows, columns = torch.meshgrid(y, x, indexing="ij")
    return torch.stack([columns, rows], dim=-1).flatten(0, 1)


def pixel_scale(
    size: tuple[int, int], other: tuple[int, int], device: torch.device | str | None = None
) -> Tensor:
    """Factors (x, y) from pixels of one (height, width) to those of another, corners on corners."""
    (height, width), (other_height, other_width) = size, other
    return torch.tensor(
        [(other_width - 1) / (width - 1), (other_height - 1) / (height - 1)], device=device
    )
