"""Views of many images at once, on their device: crop, resize, flip, colors and blur.

The parameters of a view are sampled on the host from the sample's own generator, as one row of
numbers (`view_row`). Crop and resize are two matrix products with the weights of torch's
antialiased interpolation, so host and device compute the same view up to rounding.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.data.images.transforms import TrainingTransform, View, blur_weights, to_gray
from overt.ops.jitter.api import jitter_rows
from overt.ops.jitter.operators import OPERATORS

# Columns of a row.
CROP, FLIP, ORDER, AMOUNTS, GRAY, BLUR = (
    slice(0, 4), 4, slice(5, 9), slice(9, 13), 13, 14,
)  # fmt: skip
COLUMNS = 15


def view_row(view: View) -> NDArray[np.float32]:
    """Return the numbers of a view, (15,)."""
    row = np.zeros(COLUMNS, np.float32)
    row[CROP], row[FLIP], row[GRAY], row[BLUR] = view.crop, view.flip, view.gray, view.blur
    if view.jitter is None:  # four changes that change nothing
        row[ORDER], row[AMOUNTS] = (0, 1, 2, 3), (1.0, 1.0, 1.0, 0.0)
    else:
        row[ORDER] = [OPERATORS.index(name) for name in view.jitter.order]
        row[AMOUNTS] = [getattr(view.jitter, name) for name in view.jitter.order]
    return row


def make_views(images: Tensor, rows: Tensor, transform: TrainingTransform) -> Tensor:
    """Return one view of each image: (B, 3, H, W) uint8 and rows (B, 15) to (B, 3, *size) uint8."""
    with torch.autocast(images.device.type, enabled=False):
        top, left, height, width = rows[:, CROP].unbind(1)
        bicubic = transform.interpolation == "bicubic"
        down = resize_weights(top, height, images.shape[2], transform.size[0], bicubic)
        across = resize_weights(left, width, images.shape[3], transform.size[1], bicubic)
        flips = (rows[:, FLIP] > 0)[:, None, None]
        across = torch.where(flips, across.flip(1), across)
        pixels = down[:, None] @ images.float() @ across[:, None].mT  # (B, 3, h, w)
        views = _bytes(pixels)
        if transform.jitter is not None:
            order = rows[:, ORDER].long().contiguous()
            views = jitter_rows(views, order, rows[:, AMOUNTS].contiguous())
        if transform.gray > 0:
            views = torch.where((rows[:, GRAY] > 0)[:, None, None, None], to_gray(views), views)
        if transform.blur > 0:
            sides = [blur_weights(rows[:, BLUR], side)[:, None] for side in transform.size]
            views = _bytes(sides[0] @ views.float() @ sides[1].mT)
        return views


def resize_weights(
    begin: Tensor, length: Tensor, before: int, after: int, bicubic: bool
) -> Tensor:  # (B,), (B,) to (B, after, before)
    """Return the weight of each pixel of a row of the crop in each pixel of the resized row."""
    scale = length / after  # pixels of the crop for each new one
    support = scale.clamp(min=1.0)  # a smaller image is an average: no aliasing
    centers = (torch.arange(after, device=begin.device) + 0.5) * scale[:, None]  # (B, after)
    positions = (
        torch.arange(before, device=begin.device) - begin[:, None]
    )  # (B, before), of the crop
    distance = (positions[:, None] + 0.5 - centers[..., None]).abs() / support[:, None, None]
    weights = _cubic(distance) if bicubic else (1 - distance).clamp(min=0)
    inside = (positions >= 0) & (positions < length[:, None])
    weights = weights * inside[:, None]
    return weights / weights.sum(2, keepdim=True)


def _cubic(distance: Tensor, a: float = -0.5) -> Tensor:
    """Return Keys' cubic kernel, as used by torch and Pillow for antialiased resizing."""
    near = ((a + 2) * distance - (a + 3)) * distance.square() + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))


def _bytes(pixels: Tensor) -> Tensor:
    return pixels.round().clamp(0, 255).to(torch.uint8)
