"""Live people as in crops of photographs: cut off, off-center, smaller, coarse and compressed.

Everything random is sampled on the host from the sample's own generator; the rest is computed for a
batch on its device. Letters: B people, V vertices, S pixels of a side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from overt.data.people.outfits import REGIONS, SHOES, TOP, Looks
from overt.data.rng import choose, cumulative, uniform

NEWTON_STEPS = 8
WIDEST = 2.5  # side of a crop at a distance of 1: no photograph has a larger angle of view
SPILL = 0.15  # of a person beyond the crop, in its sides, because of a shift
# Which borders cut a person off: below, one side, below and one side, above.
_CUT_SUMS = cumulative((0.6, 0.2, 0.15, 0.05))
_BELOW, _BESIDE, _BOTH, _ABOVE = range(4)
LOOSEST = 2.5  # clothes, as a factor of their thickness
GRAY = 0.07  # fraction of pictures without color
COARSE = (1, 2, 3, 4)  # pixels in which a picture has one value; 1 changes nothing
BLOCK = 8  # pixels of JPEG's blocks
# Steps of JPEG's coefficients at quality 50 (ITU-T T.81, tables K.1 and K.2).
_LIGHT_STEPS = (
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55,
    14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62,
    18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
)  # fmt: skip
_COLOR_STEPS = (
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99,
    24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99, 99, 99, 99,
    *(32 * (99,)),
)  # fmt: skip
_YCC = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))


@dataclass(frozen=True)
class PhotographOptions:
    """How people are seen in crops of photographs; the recipe's settings have the numbers."""

    # fraction of people whom a border of the photograph cuts off
    cut: float
    # side of the crop over the longer side of the visible person: smallest and largest
    margin: tuple[float, float]
    # largest distance of the crop's center from that of the visible person, in sides
    shift: float
    # fraction of whole photographs, with the person anywhere, and their largest margin
    whole: float
    whole_margin: float
    # fraction of crops that reach beyond a border next to the person
    border: float
    # fractions of coarse and of compressed pictures
    coarse: float
    compressed: float


class Photo(NamedTuple):
    """Sampled numbers of one picture."""

    window: tuple[float, ...]  # (4,) left, top, right, bottom of what is seen, in the person's box
    margin: float  # side of the crop over the longer side of the visible person
    shift: tuple[float, ...]  # (2,) of the crop's center, in sides
    frame: tuple[float, ...]  # (4,) left, top, right, bottom of the photograph, in the crop
    film: tuple[float, ...]  # (4,) contrast, saturation, number of `COARSE`, scale of JPEG's steps
    cloth: tuple[float, ...]  # (2,) saturation and factor of the thickness of clothes and hair


class Photos(NamedTuple):
    """Sampled numbers of a batch as tensors; see `Photo`."""

    window: Tensor  # (B, 4)
    margin: Tensor  # (B,)
    shift: Tensor  # (B, 2)
    frame: Tensor  # (B, 4)
    film: Tensor  # (B, 4)
    cloth: Tensor  # (B, 2)

    @classmethod
    def of(cls, photos: list[Photo]) -> Photos:
        """Stack numbers on the host."""
        columns = zip(*photos, strict=True)
        return cls(*(torch.tensor(column, dtype=torch.float32) for column in columns))


def draw_photo(options: PhotographOptions, rng: np.random.Generator) -> Photo:
    """Sample framing and film of one picture."""
    left, top, right, bottom = 0.0, 0.0, 1.0, 1.0
    is_whole = rng.random() < options.whole
    if not is_whole and rng.random() < options.cut:
        kind = choose(rng, _CUT_SUMS)
        if kind in (_BELOW, _BOTH):
            bottom = uniform(rng, 0.35, 0.95)
        if kind in (_BESIDE, _BOTH):
            missing = uniform(rng, 0.05, 0.4)
            left, right = (missing, 1.0) if rng.random() < 0.5 else (0.0, 1.0 - missing)
        if kind == _ABOVE:
            top = uniform(rng, 0.03, 0.2)
    least, most = options.margin
    margin, reach, frame = uniform(rng, least, most), options.shift, [0.0, 0.0, 1.0, 1.0]
    if is_whole:
        margin = math.exp(uniform(rng, math.log(least), math.log(options.whole_margin)))
        reach = 0.5 + SPILL - 0.5 / margin  # the person is anywhere, and may be cut off a little
        bars, axis = uniform(rng, -0.1, 0.22), int(rng.integers(2))  # none in a square photograph
        frame[axis], frame[axis + 2] = max(bars, 0.0), 1 - max(bars, 0.0)
    elif rng.random() < options.border:
        for side in rng.integers(4, size=3):  # one to three sides
            distance = uniform(rng, 0, 0.2)
            frame[side] = distance if side < 2 else 1 - distance
    shift = (uniform(rng, -reach, reach), uniform(rng, -reach, reach))
    contrast = uniform(rng, 0.8, 1.3)
    saturation = 0.0 if rng.random() < GRAY else uniform(rng, 0.6, 1.3)
    coarse = int(rng.integers(1, len(COARSE))) if rng.random() < options.coarse else 0
    quality = uniform(rng, 20, 90)
    steps = 50 / quality if quality < 50 else 2 - quality / 50
    if rng.random() >= options.compressed:
        steps = 0.0
    film = (contrast, saturation, float(coarse), steps)
    cloth = (uniform(rng, 0.1, 1.0), uniform(rng, 1.0, LOOSEST))
    return Photo((left, top, right, bottom), margin, shift, tuple(frame), film, cloth)


def worn(looks: Looks, photos: Photos) -> Looks:
    """Return looks with looser clothes in quieter colors, as most people wear them."""
    saturation, looseness = photos.cloth[..., None].unbind(1)  # (B, 1) each
    is_cloth = torch.zeros(REGIONS, 1, device=saturation.device)
    is_cloth[TOP : SHOES + 1] = 1.0

    def quiet(colors: Tensor) -> Tensor:  # (B, 6, 3)
        gray = colors.mean(-1, keepdim=True)
        return colors + is_cloth * (1 - saturation[:, None]) * (gray - colors)

    return looks._replace(
        colors=quiet(looks.colors),
        second=quiet(looks.second),
        thickness=looks.thickness * looseness,
    )


def lay(
    vertices: Tensor,  # (B, V, 2 or 3) relative to the pelvis
    divisor: Tensor,  # (B, V) by which they are projected
    fraction: Tensor,  # (B, 2)
    target: Tensor,  # (B, 2) at a distance of 1
) -> tuple[Tensor, Tensor]:
    """Return pelvis positions (B, 2) that put a point of the person's box on a target.

    The point is given as fractions of the box. Also returns the extent (B, 2) of the box.
    """
    positions, divisor = vertices[..., :2], divisor[..., None].expand(-1, -1, 2)
    shift = torch.zeros_like(positions[:, 0])
    for _ in range(NEWTON_STEPS):  # the box is piecewise linear in the position
        pixels = (positions + shift[:, None]) / divisor
        low, high = pixels.min(1), pixels.max(1)
        slopes = [1.0 / divisor.gather(1, end.indices[:, None])[:, 0] for end in (low, high)]
        point = (1 - fraction) * low.values + fraction * high.values
        slope = (1 - fraction) * slopes[0] + fraction * slopes[1]
        shift = shift - (point - target) / slope
    pixels = (positions + shift[:, None]) / divisor
    return shift, pixels.amax(1) - pixels.amin(1)


def aim(vertices: Tensor, divisor: Tensor, photos: Photos, size: int) -> tuple[Tensor, Tensor]:
    """Return pelvis positions (B, 2) and focal lengths (B,) of the sampled crops.

    The camera looks at the center of the crop, as `overt estimate` assumes for a box.
    """
    middle = torch.full_like(photos.shift, 0.5)
    _, extent = lay(vertices, divisor, middle, torch.zeros_like(middle))
    seen = photos.window[:, 2:] - photos.window[:, :2]  # (B, 2)
    longer = (extent * seen).amax(1)
    margin = torch.minimum(photos.margin, (WIDEST / longer).clamp_min(1.0))
    most = (0.5 + SPILL - 0.5 / margin)[:, None]  # smaller crops leave less room for a shift
    target = -photos.shift.clamp(-most, most) * (margin * longer)[:, None]
    fraction = (photos.window[:, :2] + photos.window[:, 2:]) / 2
    shift, extent = lay(vertices, divisor, fraction, target)
    return shift, size / (margin * (extent * seen).amax(1))


def shown_rectangle(pixels: Tensor, photos: Photos, size: int) -> Tensor:
    """Return the photograph's edges (B, 4), left to bottom, in crops with vertices (B, V, 2)."""
    low, high = pixels.amin(1), pixels.amax(1)
    edges = photos.frame * size - 0.5
    for first, keep in ((0, torch.maximum), (2, torch.minimum)):
        end = slice(first, first + 2)
        window = photos.window[:, end]
        cut = low + window * (high - low)
        is_cut = window != first / 2  # 0 on the left and above, 1 on the right and below
        edges[:, end] = torch.where(is_cut, keep(edges[:, end], cut), edges[:, end])
    return edges


def is_shown(pixels: Tensor, rectangle: Tensor) -> Tensor:
    """Return whether points (B, N, 2) lie in the photograph (B, 4), (B, N)."""
    low, high = rectangle[:, None, :2], rectangle[:, None, 2:]
    return ((pixels >= low) & (pixels <= high)).all(-1)


def develop(pictures: Tensor, rectangle: Tensor, photos: Photos) -> Tensor:
    """Return pictures (B, 3, S, S) uint8 as photographs, black beyond their edges (B, 4)."""
    contrast, saturation, coarse, steps = photos.film[:, :, None, None, None].unbind(1)
    colors = coarsened(pictures.float() / 255, coarse)
    brightness = _jpeg(colors.device)[2][0]
    gray = (colors * brightness[:, None, None]).sum(1, keepdim=True)
    colors = 0.5 + contrast * (gray + saturation * (colors - gray) - 0.5)
    colors = torch.where(steps > 0, compressed(colors.clamp(0, 1), steps), colors).clamp(0, 1)
    is_seen = in_rectangle(rectangle, pictures.shape[-1])[:, None]
    return (255 * colors * is_seen).round().to(torch.uint8)


def in_rectangle(rectangle: Tensor, size: int) -> Tensor:
    """Return which pixels (B, S, S) lie in the photograph (B, 4)."""
    line = torch.arange(size, device=rectangle.device)
    left, top, right, bottom = rectangle[:, :, None].unbind(1)  # (B, 1) each
    is_row = (line >= top) & (line <= bottom)  # (B, S), like the next
    is_column = (line >= left) & (line <= right)
    return is_row[:, :, None] & is_column[:, None]


def coarsened(pictures: Tensor, level: Tensor) -> Tensor:
    """Return pictures (B, 3, S, S) at the resolution of their level (B, 1, 1, 1) in `COARSE`."""
    side = pictures.shape[-1]
    result = pictures
    for number, pixels in enumerate(COARSE[1:], start=1):
        small = F.interpolate(pictures, (max(side // pixels, 1),) * 2, mode="area")
        large = F.interpolate(small, (side, side), mode="bilinear")
        result = torch.where(level == number, large, result)
    return result


def compressed(pictures: Tensor, steps: Tensor) -> Tensor:
    """Return pictures (B, 3, S, S), 0 to 1, as JPEG stores them; steps (B, 1, 1, 1) scale its own.

    Colors have the resolution of brightness.
    """
    side = pictures.shape[-1]
    rest = -side % BLOCK
    padded = F.pad(pictures, (0, rest, 0, rest), mode="replicate")
    waves, tables, mixing, unmixing = _jpeg(pictures.device)
    levels = 255 * torch.einsum("dc,bchw->bdhw", mixing, padded)
    levels[:, 0] -= 128
    rows = torch.unflatten(levels, 2, (-1, BLOCK))
    blocks = torch.unflatten(rows, 4, (-1, BLOCK))  # (B, 3, R, 8, C, 8)
    coefficients = blocks.transpose(3, 4).flatten(4) @ waves.t()  # (B, 3, R, C, 64)
    sizes = (tables[:, None, None] * steps[..., None]).clamp_min(1.0)
    coefficients = (coefficients / sizes).round() * sizes
    blocks = torch.unflatten(coefficients @ waves, 4, (BLOCK, BLOCK)).transpose(3, 4)
    levels = blocks.flatten(4).flatten(2, 3)
    levels[:, 0] += 128
    colors = torch.einsum("dc,bchw->bdhw", unmixing, levels) / 255
    return colors[..., :side, :side]


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _jpeg(device: torch.device) -> tuple[Tensor, ...]:
    """Return cosine waves (64, 64), their steps (3, 64), and the matrices (3, 3) to YCC and back.

    Cached, and inverted on the host: a copy or a solver would make the device wait.
    """
    numbers = np.arange(BLOCK)
    cosines = np.cos(np.pi * numbers[:, None] * (2 * numbers + 1) / (2 * BLOCK)) / 2
    cosines[0] /= math.sqrt(2)
    tables = (_LIGHT_STEPS, _COLOR_STEPS, _COLOR_STEPS)
    parts = (np.kron(cosines, cosines), tables, _YCC, np.linalg.inv(_YCC))
    return tuple(torch.tensor(part, dtype=torch.float32, device=device) for part in parts)
