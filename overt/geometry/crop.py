"""Square crops of a person: by center, side and angle from a picture, or by a mask from a batch.

Pictures on the data side are uint8 (H, W, 3); the affine maps are 2 x 3, pixels to pixels.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

Picture = NDArray[np.uint8]  # (H, W, 3)
Affine = NDArray[np.float64]  # (2, 3)


def crop_affine(centre: tuple[float, float], side: float, degrees: float, output: int) -> Affine:
    """The map from pixels of a picture to those of its square crop, turned by an angle."""
    scale, angle = output / side, math.radians(degrees)
    linear = scale * np.array(
        [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
    )
    shift = output / 2 - linear @ np.asarray(centre, dtype=np.float64)
    return np.concatenate([linear, shift[:, None]], axis=1)


def crop_affines(centre: Tensor, side: Tensor, degrees: Tensor, output: int) -> Tensor:
    """The maps (B, 2, 3) of `crop_affine` for centers (B, 2), sides (B,) and angles (B,)."""
    angle, scale = torch.deg2rad(degrees), output / side
    cosine, sine = scale * angle.cos(), scale * angle.sin()
    rows = torch.stack([cosine, sine, -sine, cosine], dim=1)
    linear = torch.unflatten(rows, 1, (2, 2))
    shift = output / 2 - (linear * centre[:, None]).sum(-1)
    return torch.cat([linear, shift[..., None]], dim=-1)


def transform_points(affine: Affine, points: NDArray[np.floating]) -> NDArray[np.float64]:
    """Points (..., 2) through a map."""
    return np.asarray(points @ affine[:, :2].T + affine[:, 2])


def warp(picture: Picture, affine: Affine, output: int) -> Picture:
    """The square of `output` pixels that a map makes of a picture: bilinear, black outside."""
    whole = np.rint(affine)
    if np.array_equal(whole[:, :2], np.eye(2)) and np.abs(affine - whole).max() < 1e-9:
        return _shifted(picture, int(whole[0, 2]), int(whole[1, 2]), output)
    linear = np.linalg.inv(affine[:, :2])
    shift = -linear @ affine[:, 2]
    # A black frame, so that the border fades into black; and Pillow counts from the corner of a
    # pixel where the map counts from its middle.
    framed = Image.fromarray(np.pad(picture, ((1, 1), (1, 1), (0, 0))))
    shift = shift + 1.0 + 0.5 - linear @ np.array([0.5, 0.5])
    coefficients = (*linear[0], shift[0], *linear[1], shift[1])
    warped = framed.transform(
        (output, output), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR
    )
    return np.array(warped)


def warp_batch(pictures: Tensor, affine: Tensor, output: int, mode: str = "bilinear") -> Tensor:
    """As `warp` for pictures (B, C, H, W) and maps (B, 2, 3) that turn and scale: (B, C, n, n).

    With `mode="nearest"` it does as `warp_nearest`.
    """
    height, width = pictures.shape[-2:]
    line = torch.arange(output, dtype=affine.dtype, device=affine.device)
    x = line[None, None] - affine[:, 0, 2, None, None]  # (B, 1, n)
    y = line[None, :, None] - affine[:, 1, 2, None, None]  # (B, n, 1)
    cosine, sine = affine[:, 0, 0, None, None], affine[:, 0, 1, None, None]
    squared = cosine.square() + sine.square()
    source_x = (cosine * x - sine * y) / squared  # (B, n, n)
    source_y = (sine * x + cosine * y) / squared
    grid = torch.stack([2 * source_x / (width - 1) - 1, 2 * source_y / (height - 1) - 1], dim=-1)
    return F.grid_sample(pictures, grid, mode, padding_mode="zeros", align_corners=True)


def _shifted(picture: Picture, right: int, down: int, output: int) -> Picture:
    """The same by copying, for a map that only moves whole pixels: no pixel is mixed."""
    height, width = picture.shape[:2]
    moved = np.zeros((output, output, 3), np.uint8)
    top, bottom = np.clip([-down, output - down], 0, height)
    left, end = np.clip([-right, output - right], 0, width)
    part = picture[top:bottom, left:end]
    if part.size:  # some of the picture is in the square
        moved[top + down : bottom + down, left + right : end + right] = part
    return moved


def warp_nearest(values: NDArray[np.floating], affine: Affine, output: int) -> NDArray[np.floating]:
    """As `warp` for a map (H, W) of numbers that must not be mixed: the nearest, 0 outside."""
    height, width = values.shape
    inverse = np.linalg.inv(affine[:, :2])
    pixels = np.stack(np.meshgrid(np.arange(output), np.arange(output)), axis=-1)  # x, y
    sources = np.rint((pixels - affine[:, 2]) @ inverse.T).astype(np.int64)
    x, y = sources[..., 0], sources[..., 1]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    sampled = values[y.clip(0, height - 1), x.clip(0, width - 1)]
    return np.where(inside, sampled, 0.0)


def mask_squares(masks: Tensor, factor: float = 1.25) -> tuple[Tensor, Tensor]:
    """Corner (B, 2) and side (B,) of the square about each mask (B, H, W), moved into the frame.

    The box runs between the middles of its outermost pixels; without any pixel it is the frame.
    """
    height, width = masks.shape[-2:]
    corners, ends = [], []
    for size, present in ((width, masks.any(1)), (height, masks.any(2))):  # (B, size)
        columns = torch.arange(size, device=masks.device)
        is_present = present.any(1)
        first = torch.where(present, columns, size).amin(1)
        last = torch.where(present, columns, -1).amax(1)
        corners.append(torch.where(is_present, first, 0))
        ends.append(torch.where(is_present, last, size - 1))
    low, high = torch.stack(corners, -1).float(), torch.stack(ends, -1).float()  # (B, 2)
    side = factor * (high - low).amax(-1)
    start = (low + high) / 2 - side[:, None] / 2
    limit = masks.new_tensor([width - 1, height - 1], dtype=torch.float32)
    spill = (start + side[:, None] - limit).clamp_min(0.0)
    return start + (-start).clamp_min(0.0) - spill, side


def crop_squares(images: Tensor, corner: Tensor, side: Tensor, output: int) -> Tensor:
    """Squares of a batch (B, C, H, W): the outermost output pixels lie on the square's edges."""
    height, width = images.shape[-2:]
    steps = torch.linspace(0.0, 1.0, output, device=images.device)
    centers = corner[:, None] + steps[None, :, None] * side[:, None, None]  # (B, n, 2)
    limits = images.new_tensor([width - 1, height - 1])
    unit = 2.0 * centers / limits - 1.0
    x = unit[:, None, :, 0].expand(-1, output, -1)
    y = unit[:, :, None, 1].expand(-1, -1, output)
    grid = torch.stack([x, y], dim=-1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=True)
