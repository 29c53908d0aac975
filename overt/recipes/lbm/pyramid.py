"""The feature pyramid of a frame: its levels as one list of tokens, resizing, reading points.

Letters: F frames, h x w cells of the finest level, C channels, S tokens of all levels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def level_sizes(cells: tuple[int, int], levels: int) -> tuple[tuple[int, int], ...]:
    """Return (height, width) of every level, each half as large as the previous one."""
    return tuple((cells[0] >> level, cells[1] >> level) for level in range(levels))


def make_tokens(features: Tensor, levels: int) -> Tensor:
    """Return tokens (F, S, C) of features (F, h, w, C): means of 1, 2 x 2, 4 x 4, ... cells."""
    images = features.permute(0, 3, 1, 2)
    maps = [images] + [F.avg_pool2d(images, 2**level) for level in range(1, levels)]
    return torch.cat([image.permute(0, 2, 3, 1).flatten(1, 2) for image in maps], dim=1)


def normalize(vectors: Tensor) -> Tensor:
    """Normalize vectors (..., C) to unit length, computed in float32."""
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float32)
    unit: Tensor = vectors / length.clamp(min=1e-12).to(vectors.dtype)
    return unit


class Resize(nn.Module):
    """Resize images bilinearly, like torch's interpolation with `align_corners=False`.

    Two matrix products along the axes, whose gradients are two more; torch's interpolation
    accumulates its gradient cell by cell.
    """

    rows: Tensor  # (new height, height)
    columns: Tensor  # (new width, width)

    def __init__(self, size: tuple[int, int], new_size: tuple[int, int]) -> None:
        super().__init__()
        self.register_buffer("rows", interpolation(size[0], new_size[0]), persistent=False)
        self.register_buffer("columns", interpolation(size[1], new_size[1]), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(F, h, w, C) to (F, new h, new w, C)."""
        images = self.columns.to(images.dtype) @ images
        images = self.rows.to(images.dtype) @ images.flatten(2)
        return torch.unflatten(images, 2, (len(self.columns), -1))


def interpolation(length: int, new_length: int) -> Tensor:
    """Return (new_length, length): the weight of each old pixel in each new one."""
    positions = (torch.arange(new_length) + 0.5) * (length / new_length) - 0.5
    positions = positions.clamp(0, length - 1)
    return (1 - (positions[:, None] - torch.arange(length)).abs()).clamp(min=0)


def read_points(features: Tensor, frames: Tensor, cells_xy: Tensor) -> Tensor:
    """Sample the maps (F, h, w, C) at positions (..., 2) in cells; returns (..., C).

    Cell centers have integer coordinates; beyond the outermost centers the border is repeated. Four
    cells are gathered per position, and nothing of the size of a map is allocated.
    """
    height, width = features.shape[1:3]
    x = cells_xy[..., 0].float().clamp(0, width - 1)
    y = cells_xy[..., 1].float().clamp(0, height - 1)
    left, top = x.floor(), y.floor()
    fraction_x, fraction_y = x - left, y - top
    column, row = left.long(), top.long()
    right, below = (column + 1).clamp(max=width - 1), (row + 1).clamp(max=height - 1)
    first = frames * (height * width)
    cells = features.flatten(0, 2)

    # Read at once: the gradient of a read is as large as all maps.
    corners = [(row, column), (row, right), (below, column), (below, right)]
    weights = [
        (1 - fraction_x) * (1 - fraction_y),
        fraction_x * (1 - fraction_y),
        (1 - fraction_x) * fraction_y,
        fraction_x * fraction_y,
    ]
    numbers = torch.stack([first + y * width + x for y, x in corners])  # (4, ...)
    read = cells.index_select(0, numbers.flatten()).view(*numbers.shape, cells.shape[-1])
    upper_left, upper_right, lower_left, lower_right = (
        corner * weight.unsqueeze(-1).to(corner.dtype)
        for corner, weight in zip(read.unbind(), weights, strict=True)
    )
    return (upper_left + upper_right) + (lower_left + lower_right)
