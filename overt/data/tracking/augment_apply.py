"""Apply a plan of `augment` to a clip: to its points with numpy, to its pixels with torch.

The pixel functions work on any device without synchronization. N tracks, T frames, processed n at a
time; (x, y) in pixels with 0 at the center of the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from overt.data.tracking.augment import Box, Patch, Plan
from overt.errors import DataError
from overt.ops.jitter.api import jitter
from overt.ops.jitter.operators import Jitter

# A GPU processes many frames in the launches of one. On a CPU a single frame fits into the cache.
FRAMES_AT_ONCE = 32


class Moved(NamedTuple):
    """The points of a clip after augmentation, and the crop positions of its frames."""

    coords_xy: NDArray[np.float32]  # (N, T, 2) pixels of the crop
    visible: NDArray[np.bool_]  # (N, T) not covered; a point outside the crop keeps its value
    corners: NDArray[np.int64]  # (T, 2) (x, y) of the crop in the zoomed frame


def move_points(plan: Plan, coords_xy: NDArray[np.float32], visible: NDArray[np.bool_]) -> Moved:
    """Return the augmented points (N, T, 2) of a clip, and which (N, T) are still visible."""
    visible = visible & ~_covered(plan, coords_xy)
    points = coords_xy + np.array([plan.pad.left, plan.pad.top], dtype=np.float64)
    padded = np.array(plan.padded_size[::-1])  # (width, height)
    sizes = np.array(plan.sizes)[:, ::-1]  # (T, 2) (width, height)
    if plan.exact_points:
        points = (points + 0.5) * (sizes / padded) - 0.5
    else:
        points = points * ((sizes - 1) / (padded - 1))
    corners = _crop_corners(plan, points[visible[:, 0], 0], sizes)
    points = points - corners
    height, width = plan.crop_size
    edge = 1 if plan.exact_points else 0
    if plan.flip_horizontal:
        points[..., 0] = width - edge - points[..., 0]
    if plan.flip_vertical:
        points[..., 1] = height - edge - points[..., 1]
    return Moved(points.astype(np.float32), visible, corners)


def _covered(plan: Plan, coords_xy: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which points (N, T) are covered by an erased or replaced rectangle."""
    covered = np.zeros(coords_xy.shape[:2], dtype=np.bool_)
    for box in (*plan.erased, *(patch.box for patch in plan.patches)):
        x, y = coords_xy[:, box.frame, 0], coords_xy[:, box.frame, 1]
        inside = (x >= box.left) & (x < box.right) & (y >= box.top) & (y < box.bottom)
        covered[:, box.frame] |= inside
    return covered


def _crop_corners(
    plan: Plan, seen_xy: NDArray[np.float64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the upper left corners (T, 2): around the initially visible points, then drifting."""
    crop = np.array(plan.crop_size[::-1])
    middle = seen_xy.mean(axis=0) if len(seen_xy) else crop
    corner = np.trunc(middle - crop // 2).astype(np.int64)
    room = np.maximum(sizes - crop - 1, 0)  # (T, 2)
    corners = []
    for move, limit in zip(plan.drift_xy, room, strict=True):
        corner = np.clip(corner + move, 0, limit)
        corners.append(corner)
    return np.stack(corners)


def render(plan: Plan, corners: NDArray[np.int64], frames: Tensor) -> Tensor:
    """Return the frames (T, 3, H, W) uint8 of the clip as planned, cropped at `corners` (T, 2)."""
    assert frames.shape[2:] == plan.frame_size, "a plan for frames of another size"
    assert len(frames) == len(plan.sizes), "a plan for a clip of another length"
    frames = replace(erase(frames, plan.erased), plan.patches, plan.patch_jitter)
    result = frames.new_empty((*frames.shape[:2], *plan.crop_size))
    at_once = 1 if frames.device.type == "cpu" else FRAMES_AT_ONCE
    for first in range(0, len(frames), at_once):
        part = slice(first, first + at_once)
        images = frames[part]
        if plan.jitter:
            images = jitter(images, plan.jitter[part])
        if plan.blur_sigma:
            images = blur(images, plan.blur_kernel, plan.blur_sigma[part])
        result[part] = _to_uint8(resample(plan, plan.sizes[part], corners[part], images))
    return result


def erase(frames: Tensor, boxes: Sequence[Box]) -> Tensor:
    """Fill boxes of the frames (T, 3, H, W) uint8 with their mean color, one after another."""
    frames = frames.clone() if boxes else frames
    for number in sorted({box.frame for box in boxes}):
        canvas = frames[number].float()
        for box in (box for box in boxes if box.frame == number):
            area = canvas[:, box.top : box.bottom, box.left : box.right]
            if area.numel():
                area.copy_(area.mean(dim=(1, 2), keepdim=True))
        frames[number] = canvas.to(torch.uint8)
    return frames


def replace(
    frames: Tensor, patches: Sequence[Patch], jitters: Sequence[tuple[Jitter, Jitter]]
) -> Tensor:
    """Fill boxes of the frames (T, 3, H, W) uint8 with patches of recolored frames."""
    if not patches:
        return frames
    numbers = sorted({patch.frame for patch in patches})
    firsts, seconds = zip(*(jitters[number] for number in numbers), strict=True)
    sources = jitter(jitter(frames[_on(frames.device, numbers)], firsts), seconds)
    recolored = dict(zip(numbers, sources, strict=True))
    result = frames.clone()
    for box, number, left, top in patches:
        bottom, right = top + box.bottom - box.top, left + box.right - box.left
        filling = recolored[number][:, top:bottom, left:right]
        result[box.frame, :, box.top : box.bottom, box.left : box.right] = filling
    return result


# --- blur, zoom and crop -------------------------------------------------------------------------


def blur(frames: Tensor, kernel: int, sigmas: Sequence[float]) -> Tensor:
    """Blur the frames (n, 3, H, W) uint8 by a Gaussian with mirrored borders, then round."""
    half = kernel // 2
    if half >= min(frames.shape[2:]):
        raise DataError(
            f"data.augmentation.blur_kernel={kernel} needs frames of more than {half} pixels a "
            f"side; these have {tuple(frames.shape[2:])}. Lower it."
        )
    distances = np.arange(half + 1)[:, None] / np.array(sigmas)  # (half + 1, n)
    gaussian = np.exp(-0.5 * distances**2)
    gaussian /= gaussian[0] + 2 * gaussian[1:].sum(axis=0)
    weights = _on(frames.device, gaussian).view(half + 1, -1, 1, 1, 1)
    images = F.pad(frames.float(), (half,) * 4, mode="reflect")
    # Sums of shifted views: several times faster than a convolution with one channel.
    for axis in (2, 3):
        size = images.shape[axis] - 2 * half
        result = images.narrow(axis, half, size) * weights[0]
        for offset in range(1, half + 1):
            result.addcmul_(images.narrow(axis, half - offset, size), weights[offset])
            result.addcmul_(images.narrow(axis, half + offset, size), weights[offset])
        images = result
    return _to_uint8(images)


def resample(
    plan: Plan, sizes: Sequence[tuple[int, int]], corners: NDArray[np.int64], frames: Tensor
) -> Tensor:
    """Pad, zoom to `sizes`, crop and flip frames (n, 3, H, W): float32 (n, 3, h, w)."""
    y, x = (_sources(plan, axis, sizes, corners, frames.device) for axis in (0, 1))
    shape = (len(frames), *plan.crop_size)
    grid = torch.stack([x[:, None, :].expand(shape), y[:, :, None].expand(shape)], dim=-1)
    return F.grid_sample(frames.float(), grid, align_corners=False)


def _sources(
    plan: Plan,
    axis: int,
    sizes: Sequence[tuple[int, int]],
    corners: NDArray[np.int64],
    device: torch.device,
) -> Tensor:
    """Return source positions, -1 to 1 in frames (n, pixels), of n crops along an axis, 0 vertical.

    Pixels are squares; the zoom keeps the image edges in place, like OpenCV's resize.
    """
    padded, zoomed = plan.padded_size[axis], np.array(sizes)[:, axis]
    pixels = np.arange(plan.crop_size[axis])
    if (plan.flip_vertical, plan.flip_horizontal)[axis]:
        pixels = pixels[::-1]
    positions = corners[:, 1 - axis, None] + pixels + 0.5  # (n, pixels)
    positions = np.clip(positions * (padded / zoomed)[:, None] - 0.5, 0, padded - 1)
    # Positions in the frame without its border; beyond its last pixel it is black.
    positions -= (plan.pad.top, plan.pad.left)[axis]
    return _on(device, (2 * positions + 1) / plan.frame_size[axis] - 1)


def _on(device: torch.device, values: ArrayLike) -> Tensor:
    """Copy a few numbers to a device without synchronization; fractions as float32."""
    numbers = np.array(values)
    if numbers.dtype == np.float64:
        numbers = numbers.astype(np.float32)
    return torch.from_numpy(numbers).to(device, non_blocking=True)


def _to_uint8(image: Tensor) -> Tensor:
    return image.round_().clamp_(0, 255).to(torch.uint8)
