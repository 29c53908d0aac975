"""Pictures of patch features: their three main directions as red, green and blue.

B images, h x w patches, D numbers each.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Colors end at these parts of the values, so that a few outliers do not gray out the rest.
_LOW, _HIGH = 0.02, 0.98


def pca_picture(
    features: Tensor,  # (B, h * w, D)
    grid: tuple[int, int],
    scale: int = 1,
) -> Tensor:
    """Colors (B, 3, h * scale, w * scale) uint8 of patch features, comparable between the images.

    Directions and range are those of all images together. Features that are all alike are gray.
    """
    height, width = grid
    batch, patches, dimension = features.shape
    assert patches == height * width, "one feature for each patch of the grid"
    # float64 on the CPU: exact enough that a picture is the same everywhere.
    values = features.detach().to("cpu", torch.float64).reshape(-1, dimension)
    values = values.nan_to_num(0, 0, 0)  # a broken model gets its picture too
    rounding = 1e-9 * values.abs().max()
    values = values - values.mean(dim=0)
    _, directions = torch.linalg.eigh(values.T @ values)  # ascending
    main = directions[:, -3:].flip(1)  # (D, up to 3)
    # An eigenvector's sign is chance: its largest entry is made positive.
    largest = main.abs().argmax(dim=0, keepdim=True)
    main = main * main.gather(0, largest).sign()
    colors = values @ main
    if dimension < 3:
        colors = torch.nn.functional.pad(colors, (0, 3 - dimension))
    low, high = (_quantile(colors, part) for part in (_LOW, _HIGH))  # (3,)
    spread = high - low
    unit = torch.where(spread > rounding, (colors - low) / spread, 0.5).clamp(0, 1)
    picture = (unit * 255).round().to(torch.uint8).view(batch, height, width, 3)
    picture = picture.permute(0, 3, 1, 2)
    return picture.repeat_interleave(scale, dim=2).repeat_interleave(scale, dim=3)


def attention_picture(
    maps: Tensor,  # (B, H, h * w)
    grid: tuple[int, int],
    scale: int = 1,
) -> Tensor:
    """Return attention in gray (B, 3, h * scale, H * w * scale) uint8: head beside head.

    White is what a head attends to most in an image.
    """
    batch, heads, _ = maps.shape
    values = maps.detach().float().cpu()
    values = values / values.amax(2, keepdim=True).clamp(min=1e-12)
    gray = (values.nan_to_num(0) * 255).round().to(torch.uint8).view(batch, heads, *grid)
    large = gray.repeat_interleave(scale, dim=2).repeat_interleave(scale, dim=3)
    beside = large.permute(0, 2, 1, 3).flatten(2)  # (B, h * scale, H * w * scale)
    return beside[:, None].expand(-1, 3, -1, -1)


def _quantile(values: Tensor, part: float) -> Tensor:
    """Of every column; by sorting, since torch.quantile refuses more than 16 million values."""
    index = round(part * (len(values) - 1))
    return values.sort(dim=0).values[index]
