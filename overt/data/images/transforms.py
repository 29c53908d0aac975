"""Crops, flips and colors of single images: uint8 in, uint8 out, all randomness from one generator.

Sizes are (height, width). Pixels stay bytes until they are on the device, where `Normalize` runs.
Resizing is torch's, which on interleaved bytes is 3 to 6 times as fast as Pillow's and differs only
by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overt.ops.jitter.operators import OPERATORS, Jitter
from overt.ops.jitter.plain import jitter_frame

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# Attempts to sample a crop before falling back to the center of the image.
TRIES = 10

BLUR_DEVIATIONS = (0.1, 2.0)  # pixels, as in SimCLR and I-JEPA

Interpolation = Literal["bilinear", "bicubic"]


class Crop(NamedTuple):
    """A rectangle of pixels of an image."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True)
class ColorJitter:
    """Ranges of color changes: factors 1 - x to 1 + x, and a hue rotation of -x to x."""

    brightness: float
    contrast: float
    saturation: float
    hue: float

    @classmethod
    def of_strength(cls, strength: float) -> ColorJitter | None:
        """Return the proportions 0.4, 0.4, 0.2, 0.1, times `strength`; none for strength 0."""
        if strength == 0:
            return None
        return cls(0.4 * strength, 0.4 * strength, 0.2 * strength, 0.1 * strength)

    @classmethod
    def distortion(cls, strength: float) -> ColorJitter:
        """Return SimCLR's proportions 0.8, 0.8, 0.8, 0.2, which I-JEPA uses too."""
        return cls(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)


class View(NamedTuple):
    """Sampled parameters of one view of an image."""

    crop: Crop
    flip: bool
    jitter: Jitter | None
    gray: bool
    blur: float  # standard deviation of the Gaussian in pixels; 0: none


@dataclass(frozen=True)
class TrainingTransform:
    """A random crop, resized; optionally flipped, color-jittered, gray or blurred.

    I-JEPA: `scale=(0.3, 1.0)`, bilinear, no flip, no jitter. H-JEPA: `scale=(0.8, 1.0)`, bicubic,
    flip 0.5 and `ColorJitter.of_strength(0.4)`.
    """

    size: tuple[int, int]
    scale: tuple[float, float] = (0.3, 1.0)  # fraction of the image's area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width over height, sampled on a log scale
    interpolation: Interpolation = "bilinear"
    flip: float = 0.0  # probability
    jitter: ColorJitter | None = None
    jitter_probability: float = 1.0
    gray: float = 0.0  # probability
    blur: float = 0.0  # probability; the standard deviation is sampled from BLUR_DEVIATIONS

    def __call__(self, image: Tensor, rng: np.random.Generator) -> Tensor:
        """Return a view (3, *size) of (3, H, W), both uint8, sampled by `rng`."""
        return self.apply(image, self.draw(image.shape[1], image.shape[2], rng))

    def draw(self, height: int, width: int, rng: np.random.Generator) -> View:
        """Sample a view of an image of this size."""
        crop = draw_crop(height, width, self.scale, self.ratio, rng)
        flip = self.flip > 0 and rng.random() < self.flip
        jitter = None
        if self.jitter is not None and (
            self.jitter_probability == 1 or rng.random() < self.jitter_probability
        ):
            jitter = draw_jitter(self.jitter, rng)
        gray = self.gray > 0 and rng.random() < self.gray
        blurred = self.blur > 0 and rng.random() < self.blur
        return View(crop, flip, jitter, gray, rng.uniform(*BLUR_DEVIATIONS) if blurred else 0.0)

    def apply(self, image: Tensor, view: View) -> Tensor:
        """Compute the view of (3, H, W) uint8."""
        image = crop_resize(image, view.crop, self.size, self.interpolation)
        if view.flip:
            image = image.flip(2)
        if view.jitter is not None:
            image = jitter_frame(image, view.jitter)
        if view.gray:
            image = to_gray(image)
        if view.blur > 0:
            down, across = (
                blur_weights(torch.tensor([view.blur]), side)[0] for side in image.shape[1:]
            )
            image = (down @ image.float() @ across.mT).round().to(torch.uint8)
        return image


@dataclass(frozen=True)
class EvaluationTransform:
    """The center of the image: resize its shorter side to `margin` times the size, then crop."""

    size: tuple[int, int]
    margin: float = 1.14
    interpolation: Interpolation = "bicubic"

    def __call__(self, image: Tensor) -> Tensor:
        """(3, H, W) uint8 to (3, *size) uint8."""
        height, width = self.size
        enlarged = int(self.margin * height), int(self.margin * width)
        # Crop to the final aspect ratio first: a one-pixel strip would grow to gigabytes.
        middle = middle_crop(image.shape[1], image.shape[2], width / height)
        image = crop_resize(image, middle, enlarged, self.interpolation)
        top, left = (enlarged[0] - height) // 2, (enlarged[1] - width) // 2
        return image[:, top : top + height, left : left + width].contiguous()

    def of_mask(self, mask: Tensor) -> Tensor:
        """Return the classes (*size) at these pixels of a mask (H, W), each the nearest one."""
        middle = middle_crop(mask.shape[0], mask.shape[1], self.size[1] / self.size[0])
        indices = []
        for final, length, start in zip(
            self.size, (middle.height, middle.width), (middle.top, middle.left), strict=True
        ):
            enlarged = int(self.margin * final)
            positions = torch.arange(final) + (enlarged - final) // 2
            indices.append(start + ((positions + 0.5) * (length / enlarged)).long())
        return mask[indices[0][:, None], indices[1]]


def draw_crop(
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
) -> Crop:
    """Sample a crop by fraction of the area and by aspect ratio.

    After ten crops that do not fit: the center of the image, with the nearest allowed aspect ratio.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(TRIES):
        area = height * width * rng.uniform(*scale)
        shape = math.exp(rng.uniform(low, high))
        crop_height, crop_width = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
        if 0 < crop_height <= height and 0 < crop_width <= width:
            top = int(rng.integers(0, height - crop_height, endpoint=True))
            left = int(rng.integers(0, width - crop_width, endpoint=True))
            return Crop(top, left, crop_height, crop_width)
    return middle_crop(height, width, min(max(width / height, ratio[0]), ratio[1]))


def reduction(crop: Crop, size: tuple[int, int]) -> int:
    """Return the factor, 1, 2, 4 or 8, by which an image may shrink before the resize."""
    times = min(crop.height / size[0], crop.width / size[1])
    return max(factor for factor in (1, 2, 4, 8) if factor <= max(times, 1))


def reduced(crop: Crop, before: Sequence[int], after: Sequence[int]) -> Crop:
    """Return the same crop of an image of `before` pixels, (height, width), in one of `after`."""
    ratios = [small / large for small, large in zip(after, before, strict=True)]
    height, width = (
        min(max(round(side * ratio), 1), limit)
        for side, ratio, limit in zip(crop[2:], ratios, after, strict=True)
    )
    top, left = min(round(crop.top * ratios[0]), after[0] - height), round(crop.left * ratios[1])
    return Crop(top, min(left, after[1] - width), height, width)


def middle_crop(height: int, width: int, ratio: float) -> Crop:
    """Return the largest centered crop with this aspect ratio."""
    crop_height = min(height, max(1, round(width / ratio)))
    crop_width = min(width, max(1, round(height * ratio)))
    return Crop((height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width)


def crop_resize(
    image: Tensor, crop: Crop, size: tuple[int, int], interpolation: Interpolation
) -> Tensor:
    """Resize a crop of (3, H, W) uint8 to (3, *size), antialiased."""
    top, left, height, width = crop
    part = image[:, top : top + height, left : left + width]
    if (height, width) != size:
        part = F.interpolate(part[None], size, mode=interpolation, antialias=True)[0]
    return part.contiguous()


def draw_jitter(reach: ColorJitter, rng: np.random.Generator) -> Jitter:
    """Factors and order of one color jitter."""
    order = tuple(OPERATORS[number] for number in rng.permutation(len(OPERATORS)))
    reaches = (reach.brightness, reach.contrast, reach.saturation)
    brightness, contrast, saturation = (rng.uniform(max(0.0, 1 - x), 1 + x) for x in reaches)
    return Jitter(order, brightness, contrast, saturation, rng.uniform(-reach.hue, reach.hue))


def to_gray(images: Tensor) -> Tensor:
    """Return (..., 3, H, W) uint8 with the luminance in all three channels."""
    red, green, blue = images.float().unbind(-3)
    gray = (0.299 * red + 0.587 * green + 0.114 * blue).round().to(torch.uint8)
    return gray.unsqueeze(-3).expand_as(images)


def blur_weights(deviations: Tensor, side: int) -> Tensor:
    """Return (B, side, side): a Gaussian around each pixel, normalized within the image."""
    offsets = torch.arange(side, device=deviations.device, dtype=torch.float32)
    squares = (offsets[:, None] - offsets).square()  # (side, side)
    # A standard deviation of 0 leaves every pixel unchanged.
    weights = torch.exp(-squares / (2 * deviations.clamp(min=1e-3).square()[:, None, None]))
    return weights / weights.sum(2, keepdim=True)


class Normalize(nn.Module):
    """Normalize bytes (B, C, H, W) to float32 by mean and standard deviation, on their device.

    The constants are buffers that move with the model: creating them in each step would
    synchronize. They are not saved.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD
    ) -> None:
        super().__init__()
        deviation = torch.tensor(std).view(-1, 1, 1)
        self.register_buffer("scale", 1 / (255 * deviation), persistent=False)
        shift = -torch.tensor(mean).view(-1, 1, 1) / deviation
        self.register_buffer("shift", shift, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return images * self.scale + self.shift
