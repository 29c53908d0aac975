"""Augmentation of clips with tracks: all random parameters of a clip, as data.

`augment_apply` applies a plan to points and pixels. T frames; sizes are (height, width). This file
does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple, Protocol

from overt.checks import each_within, lowest_highest, within
from overt.errors import ConfigError
from overt.ops.jitter.operators import OPERATORS, Jitter

_ORDERS = list(permutations(OPERATORS))
_SECTION = "data.augmentation"


@dataclass
class AugmentationSettings:
    # fraction of the frames, all but the first, in which rectangles get their mean color; 0: none
    erase_probability: float
    # maximum number of rectangles in such a frame
    erase_max: int
    # range of their width and height in pixels, the end exclusive
    erase_size: list[int]
    # fraction of the frames, all but the first, in which rectangles show a patch of another frame
    replace_probability: float
    # maximum number of rectangles in such a frame
    replace_max: int
    # range of their width and height in pixels, the end exclusive
    replace_size: list[int]
    # fraction of the clips whose colors change, independently in every frame
    jitter_probability: float
    # brightness is multiplied by 1 - value to 1 + value
    brightness: float
    # contrast likewise
    contrast: float
    # saturation likewise
    saturation: float
    # hue shifts by up to this fraction of the circle, in either direction
    hue: float
    # fraction of the clips that are blurred, independently in every frame
    blur_probability: float
    # taps of the Gaussian, an odd number
    blur_kernel: int
    # range of its standard deviation in pixels
    blur_sigma: list[float]
    # black columns and rows added on each side: below this number
    pad: int
    # range of the zoom of the first frame
    scale: list[float]
    # the zoom of width and height changes by up to this from frame to frame
    scale_drift: float
    # hard limits of the zoom
    scale_limits: list[float]
    # a zoomed frame exceeds the crop by at least this many pixels along each axis
    crop_margin: int
    # the crop moves by up to this many pixels from frame to frame
    crop_drift: int
    # fraction of the last change of zoom and crop that continues in the next frame
    drift_momentum: float
    # fraction of the clips flipped left to right
    flip_horizontal: float
    # fraction of the clips flipped top to bottom
    flip_vertical: float
    # points follow the pixels exactly; false: as the released weights were trained, where a flip is
    # off by one pixel (W - x) and a zoom by up to half a pixel (corners of the image stay corners)
    exact_points: bool

    def __post_init__(self) -> None:
        fractions = (
            "erase_probability", "replace_probability", "jitter_probability", "blur_probability",
            "flip_horizontal", "flip_vertical", "drift_momentum", "brightness", "contrast",
            "saturation",
        )  # fmt: skip
        each_within(_SECTION, self, fractions, 0, 1)
        within(_key("hue"), self.hue, 0, 0.5)  # half the circle
        for name in ("erase_size", "replace_size", "blur_sigma", "scale", "scale_limits"):
            lowest_highest(_key(name), getattr(self, name))
        each_within(_SECTION, self, ("erase_max", "replace_max", "pad", "crop_drift"), 1)
        each_within(_SECTION, self, ("crop_margin", "scale_drift"), 0)
        for key in ("erase_size", "replace_size"):
            if len(set(getattr(self, key))) == 1:
                raise ConfigError(f"{_key(key)}: its end is exclusive and must exceed its start")
        if self.blur_kernel < 1 or self.blur_kernel % 2 == 0:
            raise ConfigError(f"{_key('blur_kernel')}={self.blur_kernel}; it must be odd")


def _key(name: str) -> str:
    return f"{_SECTION}.{name}"


class Draws(Protocol):
    """Source of random numbers: a numpy Generator, or a list that is replayed."""

    def random(self) -> float: ...

    def integers(self, low: int, high: int) -> int: ...

    def uniform(self, low: float, high: float) -> float: ...


class Box(NamedTuple):
    """The pixels [left, right) x [top, bottom) of a frame."""

    frame: int
    left: int
    top: int
    right: int
    bottom: int


class Patch(NamedTuple):
    """A box, and where the pixels that fill it come from."""

    box: Box
    frame: int
    left: int
    top: int


class Pad(NamedTuple):
    """Black columns and rows around a frame."""

    left: int
    right: int
    top: int
    bottom: int


@dataclass(frozen=True)
class Plan:
    """All sampled parameters of a clip of T frames; empty ones have no effect."""

    frame_size: tuple[int, int]  # (height, width) before
    crop_size: tuple[int, int]  # (height, width) after
    erased: tuple[Box, ...]
    # Patches are cut from a copy of the clip whose colors were jittered twice, T pairs.
    patch_jitter: tuple[tuple[Jitter, Jitter], ...]
    patches: tuple[Patch, ...]
    jitter: tuple[Jitter, ...]  # T
    blur_kernel: int
    blur_sigma: tuple[float, ...]  # T
    pad: Pad
    sizes: tuple[
        tuple[int, int], ...
    ]  # T times (height, width) to which the padded frame is zoomed
    drift_xy: tuple[tuple[int, int], ...]  # T moves of the crop
    flip_horizontal: bool
    flip_vertical: bool
    exact_points: bool

    @property
    def padded_size(self) -> tuple[int, int]:
        """Return (height, width) of the frames with their black border."""
        height, width = self.frame_size
        return height + self.pad.top + self.pad.bottom, width + self.pad.left + self.pad.right


def draw_plan(
    frames: int,
    frame_size: tuple[int, int],
    crop_size: tuple[int, int],
    settings: AugmentationSettings,
    draws: Draws,
) -> Plan:
    """Sample all parameters of a clip in a fixed order; a step of probability 0 samples nothing."""
    erased: list[Box] = []
    if settings.erase_probability > 0:
        for frame in range(1, frames):
            if draws.random() < settings.erase_probability:
                for _ in range(draws.integers(1, settings.erase_max + 1)):
                    erased.append(_box(frame, frame_size, settings.erase_size, draws))
    patch_jitter: list[tuple[Jitter, Jitter]] = []
    patches: list[Patch] = []
    if settings.replace_probability > 0:
        patch_jitter = [(_jitter(settings, draws), _jitter(settings, draws)) for _ in range(frames)]
        for frame in range(1, frames):
            if draws.random() < settings.replace_probability:
                for _ in range(draws.integers(1, settings.replace_max + 1)):
                    box = _box(frame, frame_size, settings.replace_size, draws)
                    patches.append(_patch(box, frames, frame_size, draws))
    jittered = _happens(settings.jitter_probability, draws)
    blurred = _happens(settings.blur_probability, draws)
    jitter = [_jitter(settings, draws) for _ in range(frames)] if jittered else []
    sigma = [draws.uniform(*settings.blur_sigma) for _ in range(frames)] if blurred else []
    pad = Pad(*(int(draws.integers(0, settings.pad)) for _ in range(4)))
    padded = (frame_size[0] + pad.top + pad.bottom, frame_size[1] + pad.left + pad.right)
    return Plan(
        frame_size,
        crop_size,
        tuple(erased),
        tuple(patch_jitter),
        tuple(patches),
        tuple(jitter),
        settings.blur_kernel,
        tuple(sigma),
        pad,
        sizes=_zoomed_sizes(frames, padded, crop_size, settings, draws),
        drift_xy=_crop_drift(frames, settings, draws),
        flip_horizontal=_happens(settings.flip_horizontal, draws),
        flip_vertical=_happens(settings.flip_vertical, draws),
        exact_points=settings.exact_points,
    )


def _happens(probability: float, draws: Draws) -> bool:
    return probability > 0 and bool(draws.random() < probability)


def _box(frame: int, frame_size: tuple[int, int], sides: list[int], draws: Draws) -> Box:
    height, width = frame_size
    x, y = draws.integers(0, width), draws.integers(0, height)
    half_width, half_height = draws.integers(*sides) / 2, draws.integers(*sides) / 2

    def within(coordinate: float, size: int) -> int:
        return round(min(max(coordinate, 0), size - 1))  # half to even

    return Box(
        frame,
        within(x - half_width, width),
        within(y - half_height, height),
        within(x + half_width, width),
        within(y + half_height, height),
    )


def _patch(box: Box, frames: int, frame_size: tuple[int, int], draws: Draws) -> Patch:
    height, width = frame_size
    frame = int(draws.integers(0, frames))
    left = int(draws.integers(0, width - (box.right - box.left)))
    top = int(draws.integers(0, height - (box.bottom - box.top)))
    return Patch(box, frame, left, top)


def _jitter(settings: AugmentationSettings, draws: Draws) -> Jitter:
    order = _ORDERS[draws.integers(0, len(_ORDERS))]
    reaches = (settings.brightness, settings.contrast, settings.saturation)
    brightness, contrast, saturation = (draws.uniform(1 - x, 1 + x) for x in reaches)
    hue = draws.uniform(-settings.hue, settings.hue)
    return Jitter(order, brightness, contrast, saturation, hue)


def _zoomed_sizes(
    frames: int,
    padded: tuple[int, int],
    crop_size: tuple[int, int],
    settings: AugmentationSettings,
    draws: Draws,
) -> tuple[tuple[int, int], ...]:
    """Return the size of every frame: one zoom, then slow changes of width and height."""
    zoom_x = zoom_y = draws.uniform(*settings.scale)
    change_x = change_y = 0.0
    reach = settings.scale_drift
    lowest, highest = settings.scale_limits
    sizes = []
    for frame in range(frames):
        if frame > 0:
            old, new = (0.0, 1.0) if frame == 1 else _smoothing_weights(settings.drift_momentum)
            change_x = old * change_x + new * draws.uniform(-reach, reach)
            change_y = old * change_y + new * draws.uniform(-reach, reach)
        zoom_x, zoom_y = zoom_x + change_x, zoom_y + change_y
        mean = (zoom_x + zoom_y) / 2  # pulls both together, so that shapes are not stretched away
        zoom_x = min(max((zoom_x + mean) / 2, lowest), highest)
        zoom_y = min(max((zoom_y + mean) / 2, lowest), highest)
        height = max(int(padded[0] * zoom_y), crop_size[0] + settings.crop_margin)
        width = max(int(padded[1] * zoom_x), crop_size[1] + settings.crop_margin)
        sizes.append((height, width))
        zoom_x, zoom_y = (width - 1) / (padded[1] - 1), (height - 1) / (padded[0] - 1)
    return tuple(sizes)


def _crop_drift(
    frames: int, settings: AugmentationSettings, draws: Draws
) -> tuple[tuple[int, int], ...]:
    reach = settings.crop_drift
    old, new = _smoothing_weights(settings.drift_momentum)
    moves = [(0, 0)]
    for frame in range(1, frames):
        if frame == 1:  # the range without its end here, with its end later
            moves.append((int(draws.integers(-reach, reach)), int(draws.integers(-reach, reach))))
            continue
        x = int(old * moves[-1][0] + new * draws.integers(-reach, reach + 1))
        y = int(old * moves[-1][1] + new * draws.integers(-reach, reach + 1))
        moves.append((x, y))
    return tuple(moves)


def _smoothing_weights(momentum: float) -> tuple[float, float]:
    """Return what remains of the last change plus the next random one."""
    return momentum, round(1 - momentum, 9)  # 1 - 0.8 is below 0.2, which a truncation would show
