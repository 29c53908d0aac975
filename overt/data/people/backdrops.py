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
from overt.errors import DataError

PICTURES = (".jpg", ".jpeg", ".png", ".webp")
HIDDEN = 0.35  # pictures in which something stands before the person
BLUR = 3  # pixels on each side that are mixed
NOISE_STEPS = 32  # levels of a standard deviation of noise, stored as int8


class Photographs:
    """Provides background pictures from a folder, or None without one."""

    def __init__(self, folder: str | Path | None) -> None:
        self.paths: list[Path] = []
        if folder is None:
            return
        root = Path(folder)
        self.paths = sorted(p for p in root.rglob("*") if p.suffix.lower() in PICTURES)
        if not self.paths:
            raise DataError(f"backgrounds {root}: no picture below it ({', '.join(PICTURES)})")

    def crop(self, side: int, rng: np.random.Generator) -> Tensor:  # (3, S, S)
        path = self.paths[int(rng.integers(len(self.paths)))]
        pixels = decode_image(read_file(path), str(path))
        shorter = min(pixels.shape[:2])
        size = int(rng.integers(max(shorter // 3, 1), shorter + 1))
        top, left = (int(rng.integers(extent - size + 1)) for extent in pixels.shape[:2])
        part = torch.from_numpy(pixels[top : top + size, left : left + size].copy())
        part = part.permute(2, 0, 1)[None].float() / 255
        return F.interpolate(part, (side, side), mode="bilinear", antialias=True)[0]


def backdrop(side: int, rng: np.random.Generator, photographs: Photographs) -> Tensor:
    """Generate one background (3, S, S), 0 to 1."""
    if photographs.paths and rng.random() < 0.8:
        return photographs.crop(side, rng)
    corners = torch.from_numpy(_muted(rng, 4)).view(1, 2, 2, 3).permute(0, 3, 1, 2)
    picture = F.interpolate(corners, (side, side), mode="bilinear", align_corners=True)[0]
    if rng.random() < 0.6:  # a floor and a wall
        horizon = int(side * rng.uniform(0.3, 0.9))
        floor = torch.from_numpy(_muted(rng, 1)).view(3, 1, 1)
        shaded = floor * torch.linspace(0.7, 1.1, side - horizon)[None, :, None]
        picture[:, horizon:] = shaded.expand(3, -1, side)
    for _ in range(int(rng.integers(0, 8))):  # furniture, windows, doors
        furniture = _furniture(side, rng)
        picture = torch.where(furniture[3:] > 0, furniture[:3], picture)
    for cells in (4, 16, 48):  # dirt, leaves, wallpaper
        strength, colored = rng.uniform(0, 0.14), rng.uniform(0, 0.4)
        coarse = torch.from_numpy(rng.standard_normal((1, 4, cells, cells), np.float32))
        coarse = coarse[:, :1] + colored * coarse[:, 1:]  # light and dark more than color
        picture = picture + strength * F.interpolate(coarse, (side, side), mode="bilinear")[0]
    return picture.clamp(0, 1)


def _muted(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Sample colors (count, 3), most of them nearly gray, as in rooms and streets."""
    gray, color = rng.uniform(0.05, 0.95, (count, 1)), rng.uniform(0, 1, (count, 3))
    strength = rng.beta(1, 2.5, (count, 1))
    return (gray + strength * (color - gray)).astype(np.float32)


def _furniture(side: int, rng: np.random.Generator) -> Tensor:
    """Draw a rotated, striped rectangle or ellipse (4, S, S); the last channel is its mask."""
    middle = rng.uniform(0, 1, 2)
    extent = rng.uniform(0.04, 0.4, 2)
    return _shape(side, rng, middle, extent)


def occluder(side: int, rng: np.random.Generator) -> Tensor | None:
    """Draw an occluder (4, S, S), the last channel its mask; None in most pictures."""
    if rng.random() >= HIDDEN:
        return None
    # More often from the sides or from below than from above.
    middle = np.array([rng.uniform(-0.1, 1.1), rng.uniform(0.3, 1.15)])
    return _shape(side, rng, middle, rng.uniform(0.06, 0.3, 2))


def _shape(
    side: int, rng: np.random.Generator, middle: NDArray[np.float64], extent: NDArray[np.float64]
) -> Tensor:
    line = torch.linspace(0, 1, side)
    x, y = line[None] - middle[0], line[:, None] - middle[1]
    angle = rng.normal(0, 0.3)
    along = x * np.cos(angle) + y * np.sin(angle)
    across = y * np.cos(angle) - x * np.sin(angle)
    along, across = along / extent[0], across / extent[1]
    if rng.random() < 0.6:
        inside = (along.abs() < 1) & (across.abs() < 1)
    else:
        inside = along.square() + across.square() < 1
    color = torch.from_numpy(_muted(rng, 1)).view(3, 1, 1)
    waves = 1 + rng.uniform(0, 0.25) * torch.sin(along * rng.uniform(2, 20) + across)
    return torch.cat([(color * waves).clamp(0, 1), inside[None].float()])


class Surroundings(NamedTuple):
    """Everything in pictures except the people, sampled before anything is rendered."""

    backdrop: Tensor  # (B, 3, S, S), 0 to 1
    occluder: Tensor  # (B, 4, S, S): color and mask, all 0 where nothing is in front
    lens: Tensor  # (B, 4): gamma, gain, spread of the blur in pixels, strength of the noise
    noise: Tensor  # (B, 3, S, S) standard normal

    def to_bytes(self) -> Surroundings:
        """Return pictures as uint8 and noise as int8: a quarter of the memory for transfers."""
        return self._replace(
            backdrop=(255 * self.backdrop).round().to(torch.uint8),
            occluder=(255 * self.occluder).round().to(torch.uint8),
            noise=(NOISE_STEPS * self.noise).round().clamp(-127, 127).to(torch.int8),
        )

    def from_bytes(self) -> Surroundings:
        """Undo `to_bytes`, up to rounding."""
        return self._replace(
            backdrop=self.backdrop.float() / 255,
            occluder=self.occluder.float() / 255,
            noise=self.noise.float() / NOISE_STEPS,
        )


def draw_surroundings(
    side: int, rng: np.random.Generator, photographs: Photographs
) -> Surroundings:
    """Sample the surroundings of one person, B = 1."""
    behind = backdrop(side, rng, photographs)
    in_front = occluder(side, rng)
    gamma, gain = rng.uniform(0.75, 1.35), rng.uniform(0.75, 1.25)
    spread = rng.uniform(0, 1.1) if rng.random() < 0.5 else 0.0
    noise = torch.from_numpy(rng.standard_normal((3, side, side), np.float32))
    lens = torch.tensor([gamma, gain, spread, rng.uniform(0.003, 0.03)], dtype=torch.float32)
    if in_front is None:
        in_front = torch.zeros(4, side, side)
    return Surroundings(behind[None], in_front[None], lens[None], noise[None])


def camera_effects(pictures: Tensor, lens: Tensor, noise: Tensor) -> Tensor:
    """Apply exposure, blur and noise of a camera to pictures (B, 3, S, S), 0 to 1."""
    gamma, gain, spread, strength = lens[..., None, None].unbind(1)  # (B, 1, 1) each
    exposed = pictures.clamp(1e-4, 1) ** gamma[:, None] * gain[:, None]
    offsets = torch.arange(-BLUR, BLUR + 1, device=pictures.device)
    kernel = torch.exp(-0.5 * (offsets / spread[:, 0]) ** 2)  # (B, 2 BLUR + 1)
    kernel = kernel / kernel.sum(1, keepdim=True)
    # Below a fifth of a pixel there is no blur.
    kernel = torch.where(spread[:, 0] > 0.2, kernel, (offsets == 0).float())
    kernel = kernel.repeat_interleave(3, 0)[:, None]  # (3 B, 1, 2 BLUR + 1)
    planes = F.pad(exposed, (BLUR,) * 4, mode="replicate").flatten(0, 1)[None]
    planes = F.conv2d(planes, kernel[:, :, None], groups=len(kernel))
    planes = F.conv2d(planes, kernel[..., None], groups=len(kernel))
    return (planes.view_as(pictures) + strength[:, None] * noise).clamp(0, 1)
