"""Textures of procedural clips: photographs of a folder, and computed patterns.

All are squares of S texels, packed as red + 256 green + 65536 blue into int32, so that a texel is
one read.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from overt.data.pictures import to_rgb
from overt.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
SEED = 2410  # of the computed patterns
# Settings that name a folder of photographs, and what their null means.
TEXTURES, CALIBRATION = "data.textures", "evaluation.export_int8"
WITHOUT = {TEXTURES: "procedural textures only", CALIBRATION: "float32"}


def load_textures(folder: str | None, side: int, num_procedural: int) -> Tensor:
    """Return photographs below a folder and `num_procedural` patterns, (K, side, side) int32."""
    pictures = [] if folder is None else read_photographs(Path(folder), side)
    pictures += [make_texture(index, side) for index in range(num_procedural)]
    if not pictures:
        raise DataError(
            "no textures: data.textures=null and data.procedural.made_textures=0; give "
            "data.textures=FOLDER with photographs, or raise made_textures"
        )
    return pack(np.stack(pictures))


def pack(pictures: NDArray[np.uint8]) -> Tensor:
    """Pack (K, S, S, 3) uint8 into (K, S, S) int32."""
    channels = torch.from_numpy(pictures).to(torch.int32)
    return channels[..., 0] + 256 * channels[..., 1] + 65536 * channels[..., 2]


def find_photographs(folder: Path, key: str = TEXTURES) -> list[Path]:
    """Return the pictures below a folder, sorted; `key` is the setting that errors name."""
    if not folder.is_dir():
        raise DataError(
            f"{key}={folder} is not a folder; give one with photographs "
            f"({', '.join(SUFFIXES)}), or null for {WITHOUT[key]}"
        )
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        raise DataError(
            f"{key}={folder} holds no picture ({', '.join(SUFFIXES)}); give a folder of "
            f"photographs, or null for {WITHOUT[key]}"
        )
    return files


def read_photographs(folder: Path, side: int, key: str = TEXTURES) -> list[NDArray[np.uint8]]:
    """Crop squares (side, side, 3) from every picture below a folder, in the order of names."""
    with ThreadPoolExecutor() as pool:  # decoding releases Python's lock
        square_lists = pool.map(
            lambda path: cut_squares(path, side, key), find_photographs(folder, key)
        )
        return [square for squares in square_lists for square in squares]


def cut_squares(path: Path, side: int, key: str = TEXTURES) -> list[NDArray[np.uint8]]:
    """Return as many adjacent squares as fit; one, enlarged, for a smaller picture."""
    try:
        with Image.open(path) as opened:
            picture = Image.fromarray(to_rgb(opened))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{key}: {path} is not a readable picture ({error}); remove it from the folder"
        ) from error
    shorter = min(picture.size)
    if shorter < side:
        scale = side / shorter
        larger = [max(side, round(length * scale)) for length in picture.size]
        picture = picture.resize((larger[0], larger[1]), Image.Resampling.BICUBIC)
    width, height = picture.size
    squares = []
    for row in range(height // side):
        for column in range(width // side):
            left, top = column * side, row * side
            square = picture.crop((left, top, left + side, top + side))
            squares.append(np.asarray(square, dtype=np.uint8))
    return squares


def make_texture(number: int, side: int) -> NDArray[np.uint8]:
    """Return a pattern (side, side, 3): rough, repeated, sparse, or low-contrast; deterministic."""
    rng = np.random.default_rng((SEED, number))
    y, x = np.mgrid[0:side, 0:side].astype(np.float32)
    height = _rough(side, rng, roughness=rng.uniform(0.6, 1.6))
    kind = number % 6
    if kind == 1:  # a repeated tile
        tile = int(rng.integers(12, 48))
        height = np.tile(_rough(64, rng, 0.8)[:tile, :tile], (side // tile + 1,) * 2)[:side, :side]
    elif kind == 2:  # stripes and checks, bent a little
        angle, rate = rng.uniform(0, math.pi), rng.uniform(0.08, 0.5)
        bend = 12 * rng.uniform() * height
        along = rate * (x * math.cos(angle) + y * math.sin(angle) + bend)
        across = rate * (y * math.cos(angle) - x * math.sin(angle))
        height = np.sign(np.sin(along)) * (np.sign(np.sin(across)) if rng.random() < 0.5 else 1)
        height = height * 0.8 + 0.2 * _rough(side, rng, 1.0)
    elif kind == 3:  # dots of many sizes on a plain ground
        height = 0.15 * height
        for _ in range(int(rng.integers(80, 300))):
            radius = 2 + 14 * rng.random() ** 2
            cx, cy = rng.uniform(0, side, 2)
            x0, x1 = (int(np.clip(value, 0, side)) for value in (cx - radius, cx + radius + 1))
            y0, y1 = (int(np.clip(value, 0, side)) for value in (cy - radius, cy + radius + 1))
            part = (x[y0:y1, x0:x1] - cx) ** 2 + (y[y0:y1, x0:x1] - cy) ** 2 < radius**2
            height[y0:y1, x0:x1][part] = rng.normal()
    elif kind == 4:  # weak texture
        height = 0.2 * height
    elif kind == 5:  # patches with sharp edges
        height = np.round(2.5 * _rough(side, rng, 1.8)) / 2.5 + 0.1 * height
    first, second = rng.uniform(0, 255, (2, 3))
    third = _rough(side, rng, 1.5)[..., None] * rng.normal(0, 18, 3)
    mixed = 1 / (1 + np.exp(-2 * height))[..., None]
    colors = first + (second - first) * mixed + third
    texture: NDArray[np.uint8] = np.clip(colors, 0, 255).astype(np.uint8)
    return texture


def _rough(side: int, rng: np.random.Generator, roughness: float) -> NDArray[np.float32]:
    """Return random noise (side, side) of unit variance with a power-law spectrum."""
    rates = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    rates[0, 0] = 1.0
    waves = np.fft.rfft2(rng.normal(size=(side, side))) / rates**roughness
    waves[0, 0] = 0
    surface = np.fft.irfft2(waves, s=(side, side))
    scaled: NDArray[np.float32] = (surface / surface.std()).astype(np.float32)
    return scaled
