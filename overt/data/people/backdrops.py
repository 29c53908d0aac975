"""Backgrounds and occluders of people: rooms and gradients, photographs, objects in front.

All randomness of a picture comes from its own generator. Letters: B pictures, S pixels of a side.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from overt.data.images.decode import decode_image, read_file
from overt.data.rng import uniform
from overt.errors import DataError

PICTURES = (".jpg", ".jpeg", ".png", ".webp")
PHOTOGRAPHED = 0.8  # pictures before a photograph, where a folder is given
CACHE_BYTES = 2**28  # of decoded photographs, in each process
HIDDEN = 0.35  # pictures in which something stands before the person
FURNITURE = 7  # at most
CELLS = (4, 16, 48)  # of random patterns along a side
# Of a shape: whether there is one, middle, extent, cosine and sine of its angle, whether it is a
# rectangle, color, strength and frequency of its stripes.
NUMBERS = 13
BLUR = 3  # pixels on each side that are mixed
NOISE_STEPS = 32  # levels of a standard deviation of noise, stored as int8


class Photographs:
    """Provides background pictures from a folder, or None without one."""

    def __init__(self, folder: str | Path | None, fraction: float = PHOTOGRAPHED) -> None:
        self.paths: list[Path] = []
        self.fraction = fraction  # of pictures with such a background
        self.decoded: dict[Path, NDArray[np.uint8]] = {}
        self.free_bytes = CACHE_BYTES
        if folder is None:
            return
        root = Path(folder)
        self.paths = sorted(p for p in root.rglob("[!.]*") if p.suffix.lower() in PICTURES)
        if not self.paths:
            raise DataError(f"backgrounds {root}: no picture below it ({', '.join(PICTURES)})")

    def crop(self, side: int, rng: np.random.Generator) -> Tensor:  # (3, S, S)
        path = self.paths[int(rng.integers(len(self.paths)))]
        pixels = self.pixels(path)
        shorter = min(pixels.shape[:2])
        size = int(rng.integers(max(shorter // 3, 1), shorter + 1))
        top, left = (int(rng.integers(extent - size + 1)) for extent in pixels.shape[:2])
        part = torch.from_numpy(pixels[top : top + size, left : left + size].copy())
        part = part.permute(2, 0, 1)[None]  # of bytes, which are resized several times as fast
        return F.interpolate(part, (side, side), mode="bilinear", antialias=True)[0].float() / 255

    def pixels(self, path: Path) -> NDArray[np.uint8]:  # (H, W, 3)
        """Return a picture, decoded once as long as the cache has room."""
        if path in self.decoded:
            return self.decoded[path]
        pixels = decode_image(read_file(path), str(path))
        if pixels.nbytes <= self.free_bytes:
            self.decoded[path] = pixels
            self.free_bytes -= pixels.nbytes
        return pixels


class Backdrops(NamedTuple):
    """What backgrounds are made of."""

    corners: Tensor  # (B, 3, 2, 2) colors of a gradient
    floor: Tensor  # (B, 3) its color
    floor_light: Tensor  # (B, S) its brightness in each row; 0 above the horizon
    furniture: Tensor  # (B, 7, NUMBERS) shapes
    strength: Tensor  # (B, 3) of dirt, leaves, wallpaper
    dirt: tuple[Tensor, ...]  # (B, 3, C, C) for each of CELLS
    is_photograph: Tensor  # (B,) bool: a photograph replaces it all
    photograph: Tensor  # (B, 3, S, S), 0 to 1; without a folder (B, 3, 0, 0)


def draw_backdrop(side: int, rng: np.random.Generator, photographs: Photographs) -> Backdrops:
    """Sample one background, B = 1."""

    # Arrays, as in all sampling: torch takes ten times as long to assign a few numbers.
    def zeros(*shape: int) -> NDArray[np.float32]:
        return np.zeros((1, *shape), np.float32)

    corners, floor, floor_light = zeros(3, 2, 2), zeros(3), zeros(side)
    furniture, strength = zeros(FURNITURE, NUMBERS), zeros(len(CELLS))
    dirt = [zeros(3, cells, cells) for cells in CELLS]
    width = side if photographs.paths else 0
    photograph = torch.zeros(1, 3, width, width)
    is_photograph = bool(photographs.paths) and rng.random() < photographs.fraction
    if is_photograph:
        photograph[0] = photographs.crop(side, rng)
    else:
        corners[0] = _muted(rng, 4).reshape(2, 2, 3).transpose(2, 0, 1)
        if rng.random() < 0.6:  # a floor and a wall
            horizon = int(side * uniform(rng, 0.3, 0.9))
            floor[:] = _muted(rng, 1)
            floor_light[0, horizon:] = torch.linspace(0.7, 1.1, side - horizon).numpy()
        for number in range(int(rng.integers(0, FURNITURE + 1))):  # windows and doors, too
            middle = (rng.random(), rng.random())
            extent = (uniform(rng, 0.04, 0.4), uniform(rng, 0.04, 0.4))
            furniture[0, number] = _draw_shape(rng, middle, extent)
        for number, cells in enumerate(CELLS):
            strength[0, number] = uniform(rng, 0, 0.14)
            colored = uniform(rng, 0, 0.4)
            coarse = rng.standard_normal((4, cells, cells), np.float32)
            # Light and dark more than color.
            dirt[number][0] = coarse[:1] + colored * coarse[1:]
    return Backdrops(
        torch.from_numpy(corners),
        torch.from_numpy(floor),
        torch.from_numpy(floor_light),
        torch.from_numpy(furniture),
        torch.from_numpy(strength),
        tuple(torch.from_numpy(cells) for cells in dirt),
        torch.tensor([is_photograph]),
        photograph,
    )


def paint_backdrops(drawn: Backdrops, side: int) -> Tensor:
    """Return sampled backgrounds (B, 3, S, S), 0 to 1."""
    picture = F.interpolate(drawn.corners, (side, side), mode="bilinear", align_corners=True)
    light = drawn.floor_light[:, None, :, None]  # (B, 1, S, 1)
    picture = torch.where(light > 0, drawn.floor[..., None, None] * light, picture)
    for numbers in drawn.furniture.unbind(1):
        color, mask = paint_shapes(numbers, side)
        picture = torch.where(mask, color, picture)
    for strength, coarse in zip(drawn.strength.unbind(1), drawn.dirt, strict=True):
        fine = F.interpolate(coarse, (side, side), mode="bilinear")
        picture = picture + strength[:, None, None, None] * fine
    picture = picture.clamp(0, 1)
    if drawn.photograph.shape[-1] == 0:
        return picture
    return torch.where(drawn.is_photograph[:, None, None, None], drawn.photograph, picture)


def _muted(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Sample colors (count, 3), most of them nearly gray, as in rooms and streets."""
    gray, color = rng.uniform(0.05, 0.95, (count, 1)), rng.random((count, 3))
    strength = rng.beta(1, 2.5, (count, 1))
    return (gray + strength * (color - gray)).astype(np.float32)


def draw_occluder(rng: np.random.Generator) -> Tensor:
    """Sample an occluder (NUMBERS,); all 0 in most pictures, which have none."""
    if rng.random() >= HIDDEN:
        return torch.zeros(NUMBERS)
    # More often from the sides or from below than from above.
    middle = (uniform(rng, -0.1, 1.1), uniform(rng, 0.3, 1.15))
    extent = (uniform(rng, 0.06, 0.3), uniform(rng, 0.06, 0.3))
    return torch.from_numpy(_draw_shape(rng, middle, extent))


def _draw_shape(
    rng: np.random.Generator, middle: tuple[float, float], extent: tuple[float, float]
) -> NDArray[np.float32]:
    """Sample a rotated, striped rectangle or ellipse, (NUMBERS,)."""
    angle = rng.normal(0, 0.3)
    is_rectangle = rng.random() < 0.6
    color = _muted(rng, 1)[0].tolist()
    waves = (uniform(rng, 0, 0.25), uniform(rng, 2, 20))
    turn = (np.cos(angle), np.sin(angle))
    numbers = [1, *middle, *extent, *turn, is_rectangle, *color, *waves]
    return np.array(numbers, np.float32)


def paint_shapes(numbers: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Return colors (B, 3, S, S) and masks (B, 1, S, S) of shapes (B, NUMBERS)."""
    columns = numbers[:, :, None, None].unbind(1)  # (B, 1, 1) each
    present, left, top, width, height, cosine, sine, is_rectangle = columns[:8]
    strength, frequency = columns[11:]
    line = torch.linspace(0, 1, side, device=numbers.device)
    x, y = line[None, None] - left, line[None, :, None] - top
    along = (x * cosine + y * sine) / torch.where(present > 0, width, 1.0)
    across = (y * cosine - x * sine) / torch.where(present > 0, height, 1.0)
    in_rectangle = (along.abs() < 1) & (across.abs() < 1)
    in_ellipse = along.square() + across.square() < 1
    inside = torch.where(is_rectangle > 0, in_rectangle, in_ellipse) & (present > 0)
    waves = 1 + strength * torch.sin(along * frequency + across)
    color = (numbers[:, 8:11, None, None] * waves[:, None]).clamp(0, 1)
    return color, inside[:, None]


class Surroundings(NamedTuple):
    """Everything in pictures except the people, sampled before anything is rendered."""

    backdrop: Backdrops
    occluder: Tensor  # (B, NUMBERS) a shape in front; all 0 where there is none
    lens: Tensor  # (B, 4): gamma, gain, spread of the blur in pixels, strength of the noise
    noise: Tensor  # (B, 3, S, S) standard normal

    def to_bytes(self) -> Surroundings:
        """Return photographs as uint8 and noise as int8: a quarter of the memory for transfers."""
        photograph = (255 * self.backdrop.photograph).round_().to(torch.uint8)
        return self._replace(
            backdrop=self.backdrop._replace(photograph=photograph),
            noise=(NOISE_STEPS * self.noise).round_().clamp_(-127, 127).to(torch.int8),
        )

    def from_bytes(self) -> Surroundings:
        """Undo `to_bytes`, up to rounding."""
        photograph = self.backdrop.photograph.float() / 255
        return self._replace(
            backdrop=self.backdrop._replace(photograph=photograph),
            noise=self.noise.float() / NOISE_STEPS,
        )


def draw_surroundings(
    side: int, rng: np.random.Generator, photographs: Photographs
) -> Surroundings:
    """Sample the surroundings of one person, B = 1."""
    backdrop = draw_backdrop(side, rng, photographs)
    in_front = draw_occluder(rng)
    gamma, gain = uniform(rng, 0.75, 1.35), uniform(rng, 0.75, 1.25)
    spread = uniform(rng, 0, 1.1) if rng.random() < 0.5 else 0.0
    noise = torch.from_numpy(rng.standard_normal((1, 3, side, side), np.float32))
    lens = np.array([[gamma, gain, spread, uniform(rng, 0.003, 0.03)]], np.float32)
    return Surroundings(backdrop, in_front[None], torch.from_numpy(lens), noise)


def camera_effects(pictures: Tensor, lens: Tensor, noise: Tensor) -> Tensor:
    """Apply exposure, blur and noise of a camera to pictures (B, 3, S, S), 0 to 1."""
    gamma, gain, spread, strength = lens[..., None, None].unbind(1)  # (B, 1, 1) each
    exposed = pictures.clamp(1e-4, 1) ** gamma[:, None] * gain[:, None]
    offsets = torch.arange(-BLUR, BLUR + 1, device=pictures.device)
    kernel = torch.exp(-0.5 * (offsets / spread[:, 0]) ** 2)  # (B, 2 BLUR + 1)
    kernel = kernel / kernel.sum(1, keepdim=True)
    # A spread below a fifth of a pixel leaves pictures sharp.
    kernel = torch.where(spread[:, 0] > 0.2, kernel, (offsets == 0).float())
    kernel = kernel.repeat_interleave(3, 0)[:, None]  # (3 B, 1, 2 BLUR + 1)
    planes = F.pad(exposed, (BLUR,) * 4, mode="replicate").flatten(0, 1)[None]
    planes = F.conv2d(planes, kernel[:, :, None], groups=len(kernel))
    planes = F.conv2d(planes, kernel[..., None], groups=len(kernel))
    return (planes.view_as(pictures) + strength[:, None] * noise).clamp(0, 1)
