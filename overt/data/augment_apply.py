"""What a plan of `augment` does to a clip: to its points with numpy, to its pixels with torch.

The pixel functions work on any device. N tracks, T frames; (x, y) in pixels with 0 at the centre
of the first one. Frames are worked on one by one: on a CPU a frame stays in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from overt.data.augment import Box, Jitter, Patch, Plan
from overt.errors import DataError


class Moved(NamedTuple):
    """The points of a clip after augmentation, and where its frames are cut."""

    coords_xy: NDArray[np.float32]  # (N, T, 2) pixels of the crop
    visible: NDArray[np.bool_]  # (N, T) not covered; a point outside the crop keeps its value
    corners: NDArray[np.int64]  # (T, 2) (x, y) of the crop in the zoomed frame


def move_points(plan: Plan, coords_xy: NDArray[np.float32], visible: NDArray[np.bool_]) -> Moved:
    """Where the points (N, T, 2) of the clip end up, and which (N, T) can still be seen."""
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
    """Which points (N, T) lie under something that was erased or replaced."""
    covered = np.zeros(coords_xy.shape[:2], dtype=np.bool_)
    for box in (*plan.erased, *(patch.box for patch in plan.patches)):
        x, y = coords_xy[:, box.frame, 0], coords_xy[:, box.frame, 1]
        inside = (x >= box.left) & (x < box.right) & (y >= box.top) & (y < box.bottom)
        covered[:, box.frame] |= inside
    return covered


def _crop_corners(
    plan: Plan, seen_xy: NDArray[np.float64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Upper left corners (T, 2): around the points seen at first, then drifting."""
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
    """The frames (T, 3, H, W) uint8 of the clip as planned, cut at `corners` (T, 2)."""
    assert frames.shape[2:] == plan.frame_size, "a plan for frames of another size"
    assert len(frames) == len(plan.sizes), "a plan for a clip of another length"
    frames = replace(erase(frames, plan.erased), plan.patches, plan.patch_jitter)
    if plan.jitter:
        frames = jitter(frames, plan.jitter)
    if plan.blur_sigma:
        frames = blur(frames, plan.blur_kernel, plan.blur_sigma)
    return _to_uint8(resample(plan, corners, frames))


def erase(frames: Tensor, boxes: Sequence[Box]) -> Tensor:
    """Fill boxes of the frames (T, 3, H, W) uint8 with their mean colour, one after another."""
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
    """Fill boxes of the frames (T, 3, H, W) uint8 with patches of recoloured frames."""
    if not patches:
        return frames
    result = frames.clone()
    recoloured: dict[int, Tensor] = {}
    for patch in patches:
        if patch.frame not in recoloured:
            first, second = jitters[patch.frame]
            recoloured[patch.frame] = jitter_frame(jitter_frame(frames[patch.frame], first), second)
        box = patch.box
        bottom, right = patch.top + box.bottom - box.top, patch.left + box.right - box.left
        result[box.frame, :, box.top : box.bottom, box.left : box.right] = recoloured[patch.frame][
            :, patch.top : bottom, patch.left : right
        ]
    return result


def jitter(frames: Tensor, jitters: Sequence[Jitter]) -> Tensor:
    """Change the colours of every frame of (T, 3, H, W) uint8."""
    return torch.stack([jitter_frame(*pair) for pair in zip(frames, jitters, strict=True)])


def jitter_frame(frame: Tensor, jitter: Jitter) -> Tensor:
    """Change brightness, contrast, saturation and hue of an image (3, H, W) uint8.

    The first three are those of Pillow's ImageEnhance to the bit, and so torchvision's on Pillow
    images. Hue turns by the exact angle, where Pillow rounds hue and saturation to 8 bits.
    """
    image = frame.float()
    for operator in jitter.order:
        if operator == "brightness":
            image = _away_from(0.0, image, jitter.brightness)
        elif operator == "contrast":
            mean = torch.floor(_grey(image).mean() + 0.5)
            image = _away_from(mean, image, jitter.contrast)
        elif operator == "saturation":
            image = _away_from(_grey(image), image, jitter.saturation)
        else:
            image = _turn_hue(image, jitter.hue)
    return image.to(torch.uint8)


def _away_from(base: Tensor | float, image: Tensor, factor: float) -> Tensor:
    """Multiply the distance to `base`, cut to 8 bits without rounding as Pillow does."""
    return image.sub(base).mul_(factor).add_(base).clamp_(0, 255).floor_()


def _grey(image: Tensor) -> Tensor:
    """Pillow's luminance (H, W) of an image (3, H, W), whole numbers; exact in float32."""
    red, green, blue = image
    return torch.floor((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536)


def _turn_hue(image: Tensor, turn: float) -> Tensor:
    """Turn the hue of an image (3, H, W) by a part of the circle, to whole numbers again."""
    red, green, blue = image
    value = image.amax(dim=0)
    chroma = value - image.amin(dim=0)
    # Masks multiplied, since on a CPU a choice for each pixel costs more.
    is_red = value == red
    is_green = (value == green) & ~is_red
    is_blue = ~(is_red | is_green)
    sixth = (green - blue).mul_(is_red)
    sixth.add_((blue - red).mul_(is_green)).add_((red - green).mul_(is_blue))
    # Whole numbers: a chroma below 1 is 0, where there is nothing to divide.
    sixth.div_(chroma.clamp(min=1)).add_(is_green, alpha=2).add_(is_blue, alpha=4)
    turned = torch.empty_like(image)
    for channel, start in zip(turned, (5.0, 3.0, 1.0), strict=True):
        place = sixth + (start + 6 * turn)
        place.sub_(torch.floor(place / 6), alpha=6)  # modulo 6
        torch.minimum(place, 4 - place, out=channel)
        channel.clamp_(0, 1).mul_(chroma).neg_().add_(value)
    return turned.round_()


def blur(frames: Tensor, kernel: int, sigmas: Sequence[float]) -> Tensor:
    """Gaussian blur of every frame of (T, 3, H, W) uint8, mirrored at the border, then rounded."""
    half = kernel // 2
    if half >= min(frames.shape[2:]):
        raise DataError(
            f"data.augmentation.blur_kernel={kernel} needs frames of more than {half} pixels a "
            f"side; these have {tuple(frames.shape[2:])}. Lower it."
        )
    blurred = torch.empty_like(frames)
    for number, sigma in enumerate(sigmas):
        weights = [math.exp(-0.5 * (offset / sigma) ** 2) for offset in range(half + 1)]
        total = weights[0] + 2 * sum(weights[1:])
        weights = [weight / total for weight in weights]
        image = F.pad(frames[number][None].float(), (half,) * 4, mode="reflect")[0]
        # Sums of shifted views: several times faster than a convolution with one channel.
        for axis in (1, 2):
            size = image.shape[axis] - 2 * half
            result = image.narrow(axis, half, size) * weights[0]
            for offset in range(1, half + 1):
                result.add_(image.narrow(axis, half - offset, size), alpha=weights[offset])
                result.add_(image.narrow(axis, half + offset, size), alpha=weights[offset])
            image = result
        blurred[number] = _to_uint8(image)
    return blurred


def resample(plan: Plan, corners: NDArray[np.int64], frames: Tensor) -> Tensor:
    """Pad, zoom, crop and mirror the frames (T, 3, H, W) in one step; float32 (T, 3, h, w)."""
    result = frames.new_empty((*frames.shape[:2], *plan.crop_size), dtype=torch.float32)
    height, width = plan.frame_size
    padded_height, padded_width = plan.padded_size
    for number, (size, (left, top)) in enumerate(zip(plan.sizes, corners.tolist(), strict=True)):
        x = _sources(left, plan.crop_size[1], size[1], padded_width, plan.flip_horizontal)
        y = _sources(top, plan.crop_size[0], size[0], padded_height, plan.flip_vertical)
        # Positions in the frame without its border; beyond its last pixel there is black.
        x = (2 * (x - plan.pad.left) + 1) / width - 1
        y = (2 * (y - plan.pad.top) + 1) / height - 1
        grid = torch.stack(torch.meshgrid(x.float(), y.float(), indexing="xy"), dim=-1)[None]
        result[number] = F.grid_sample(
            frames[number][None].float(), grid.to(frames.device), align_corners=False
        )[0]
    return result


def _sources(start: int, count: int, zoomed: int, padded: int, mirrored: bool) -> Tensor:
    """Where on an axis of the padded frame the pixels of the crop come from (count,).

    Pixels are squares of which the zoom keeps the edges in place, as in OpenCV's resize.
    """
    place = torch.arange(start, start + count, dtype=torch.float64)
    place = ((place + 0.5) * (padded / zoomed) - 0.5).clamp_(0, padded - 1)
    return place.flip(0) if mirrored else place


def _to_uint8(image: Tensor) -> Tensor:
    return image.round_().clamp_(0, 255).to(torch.uint8)
