"""Augmentation of pictures of people: sampling a crop, and transforming its labels.

All randomness comes from the sample's generator, in the order in which the functions are listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.errors import DataError
from overt.geometry.crop import (
    Affine,
    Picture,
    crop_affine,
    crop_affines,
    warp,
    warp_batch,
)

BOX_GROWTH = 1.25  # of a box about keypoints
# Side of a centered square over the picture's, where one visible keypoint is at the very center.
SMALLEST_CENTRED = 1 / 32
# Left and right among the twelve limb joints: shoulders, elbows, wrists, hips, knees, ankles.
LIMB_MIRROR = (1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10)


@dataclass(frozen=True)
class Augmentation:
    """Strengths; all zero changes nothing."""

    # factors 1 - x to 1 + x of each color channel
    noise: float = 0.0
    # probability of a mirror image
    mirror: float = 0.0
    # standard deviation of the angle in degrees, and the probability of a rotation
    rotation: float = 0.0
    rotation_probability: float = 0.0
    # standard deviation of the scale of the side, and a constant added to it
    scale: float = 0.0
    scale_added: float = 0.0
    # standard deviation of the center in sides, and the probability of a shift
    shift: float = 0.0
    shift_probability: float = 0.0


class Crop(NamedTuple):
    """A square of a picture: its position and augmentation."""

    centre: tuple[float, float]
    side: float
    degrees: float = 0.0
    mirrored: bool = False
    gains: tuple[float, float, float] = (1.0, 1.0, 1.0)


class Change(NamedTuple):
    """A sampled augmentation of a crop, whatever the crop is."""

    gains: tuple[float, float, float]
    mirrored: bool
    factor: float  # of the side
    degrees: float
    shift: tuple[float, float]  # of the center, in sides


def draw_change(options: Augmentation, rng: np.random.Generator) -> Change:
    """Sample what `options` allow."""
    gains, factor, shift = (1.0, 1.0, 1.0), 1.0, (0.0, 0.0)
    if options.noise > 0:
        red, green, blue = rng.uniform(1 - options.noise, 1 + options.noise, size=3)
        gains = (float(red), float(green), float(blue))
    mirrored = options.mirror > 0 and bool(rng.random() < options.mirror)
    degrees = 0.0
    if options.scale > 0 or options.scale_added > 0:
        factor = 1 + options.scale_added + options.scale * rng.standard_normal()
        highest = 1 + options.scale + options.scale_added
        factor = min(max(factor, 1 - options.scale), highest)
    if options.rotation > 0 and rng.random() < options.rotation_probability:
        drawn = options.rotation * rng.standard_normal()
        degrees = min(max(drawn, -2 * options.rotation), 2 * options.rotation)
    if options.shift > 0 and rng.random() < options.shift_probability:
        right, down = rng.standard_normal(2).clip(-1, 1) * options.shift
        shift = (float(right), float(down))
    return Change(gains, mirrored, factor, degrees, shift)


def draw_crop(
    centre: tuple[float, float],
    side: float,
    image_size: tuple[int, int],
    options: Augmentation,
    rng: np.random.Generator,
) -> Crop:
    """Sample a crop around a box with the augmentations that `options` allow."""
    change = draw_change(options, rng)
    side *= change.factor
    x, y = centre
    if change.mirrored:  # the center is mirrored with the picture
        x = image_size[1] - 1 - x
    moved = (x + change.shift[0] * side, y + change.shift[1] * side)
    return Crop(moved, side, change.degrees, change.mirrored, change.gains)


def cut(picture: Picture, crop: Crop, output: int) -> tuple[Picture, Affine]:
    """Return the crop in `output` pixels, and the map from the (mirrored) picture to it."""
    affine = crop_affine(crop.centre, crop.side, crop.degrees, output)
    source = np.ascontiguousarray(picture[:, ::-1]) if crop.mirrored else picture
    cropped = warp(source, affine, output)
    if crop.gains != (1.0, 1.0, 1.0):
        cropped = np.clip(cropped * np.array(crop.gains), 0, 255).astype(np.uint8)
    return cropped, affine


class Changes(NamedTuple):
    """Augmentations of a batch as tensors; see `Change`."""

    gains: Tensor  # (B, 3)
    mirrored: Tensor  # (B,) bool
    factor: Tensor  # (B,)
    degrees: Tensor  # (B,)
    shift: Tensor  # (B, 2)

    @classmethod
    def of(cls, changes: list[Change]) -> Changes:
        """Stack augmentations on the host."""
        return cls(*(torch.tensor(column) for column in zip(*changes, strict=True)))


def cut_batch(
    pictures: Tensor,  # (B, 3, H, W) uint8
    centre: Tensor,  # (B, 2)
    side: Tensor,  # (B,)
    output: int,
    changes: Changes | None = None,
) -> tuple[Tensor, Tensor]:
    """Do as `draw_crop` and `cut` on any device: crops uint8, and the maps (B, 2, 3) to them."""
    degrees = torch.zeros_like(side)
    if changes is not None:
        mirrored, degrees = changes.mirrored, changes.degrees
        side = side * changes.factor
        x, y = centre.unbind(1)
        x = torch.where(mirrored, pictures.shape[-1] - 1 - x, x)
        centre = torch.stack([x, y], dim=1) + changes.shift * side[:, None]
        pictures = torch.where(mirrored[:, None, None, None], pictures.flip(-1), pictures)
    affine = crop_affines(centre, side, degrees, output)
    levels = warp_batch(pictures.float(), affine, output)
    # Down to whole levels as in `cut`, unless only rounding has made them smaller.
    levels = (levels + 1e-3).floor()
    if changes is not None:
        levels = (levels * changes.gains[..., None, None]).clamp(0, 255)
    return levels.to(torch.uint8), affine


def box_square(box: NDArray[np.floating]) -> tuple[tuple[float, float], float]:
    """Return center and side of the square around a box (x, y, w, h, ...)."""
    x, y, width, height = (float(value) for value in box[:4])
    if not (width > 0 and height > 0):
        raise DataError(f"a box of {width:g} x {height:g} pixels has no size")
    return (x + width / 2, y + height / 2), max(width, height)


def keypoint_square(
    keypoints: NDArray[np.floating], least: float = 0.0
) -> tuple[tuple[float, float], float]:
    """Return center and side, at least `least`, of the enlarged square around visible keypoints.

    Keypoints (J, 3) are x, y and confidence.
    """
    visible_xy = keypoints[keypoints[:, 2] > 0, :2]
    if len(visible_xy) == 0:
        raise DataError("there is neither a box nor a visible keypoint")
    low, high = visible_xy.min(0), visible_xy.max(0)
    centre = (low + high) / 2
    side = max(BOX_GROWTH * float((high - low).max()), least)
    if not side > 0:
        raise DataError(
            f"the visible keypoints ({len(visible_xy)}) are all at {low[0]:g}, {low[1]:g}, which "
            "gives a crop no size; at least two different ones are needed"
        )
    return (float(centre[0]), float(centre[1])), side


def centred_side(keypoints: NDArray[np.floating] | None, image_size: tuple[int, int]) -> float:
    """Return the side of the centered square that covers visible keypoints (J, 3)."""
    height, width = image_size
    shorter = float(min(height, width))
    visible_xy = None if keypoints is None else keypoints[keypoints[:, 2] > 0, :2]
    if visible_xy is None or len(visible_xy) == 0:
        return shorter
    reach = 2 * float(np.abs(visible_xy - (width / 2, height / 2)).max())
    return min(shorter, max(reach, SMALLEST_CENTRED * shorter))


def mirror_keypoints(
    keypoints: NDArray[np.floating], width: int
) -> NDArray[np.floating]:  # (12, 3)
    """Return the twelve limb joints in the mirrored picture."""
    mirrored = keypoints[list(LIMB_MIRROR)].copy()
    mirrored[:, 0] = width - 1 - mirrored[:, 0]
    return mirrored
