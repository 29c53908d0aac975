"""Bilinear sampling at pixel positions: integer coordinates are pixel centers, (0, 0) the first."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from overt.ops.grid_sample.api import grid_sample


def bilinear_sample(
    images: Tensor,  # (B, C, H, W)
    points_xy: Tensor,  # (B, ..., 2) pixels
    padding: Literal["border", "zeros"] = "border",
) -> Tensor:
    """The values of the images at any positions, (B, C, ...).

    Outside the image "border" repeats the nearest pixel and "zeros" reads zero.
    """
    height, width = images.shape[-2:]
    x, y = points_xy.flatten(1, -2).unbind(-1)
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], dim=-1)
    values = grid_sample(images, grid.unsqueeze(2), padding)
    return values.view(*values.shape[:2], *points_xy.shape[1:-1])


def resize_bilinear(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images (B, C, H, W) at another size, the first and last pixels staying where they are.

    As two matrix products along the axes, whose gradient is two more: the scattered additions of
    torch's interpolation take longer than the convolutions around it.
    """
    height, width = images.shape[-2:]
    if (height, width) == size:
        return images
    values = images.permute(0, 2, 3, 1)  # (B, H, W, C): dense where memory is channels-last
    values = interpolation_matrix(width, size[1], values) @ values
    values = interpolation_matrix(height, size[0], values) @ values.flatten(2)
    return torch.unflatten(values, 2, (size[1], -1)).permute(0, 3, 1, 2)


def interpolation_matrix(length: int, new_length: int, reference: Tensor) -> Tensor:
    """(new_length, length): what each new position takes of each old one, corners aligned."""
    step = (length - 1) / max(new_length - 1, 1)
    positions = torch.arange(new_length, device=reference.device, dtype=torch.float64) * step
    cells = torch.arange(length, device=reference.device, dtype=torch.float64)
    return (1 - (positions[:, None] - cells).abs()).clamp(min=0).to(reference.dtype)
