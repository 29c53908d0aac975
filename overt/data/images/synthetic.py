"""Render labeled images of textured shapes, in class folders, for tests and demos.

A class is a shape with a texture; position, size, rotation, colors, light and background are
random, so neither color nor position reveals the class. (x, y) from -1 to 1 over the image. No
torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overt.data.rng import sample_rng
from overt.errors import DataError
from overt.files.atomic import new_folder, remove_left_overs
from overt.progress import report

Array = NDArray[Any]


def _disc(x: Array, y: Array) -> Array:
    distance: Array = np.hypot(x, y) - 0.9
    return distance


def _square(x: Array, y: Array) -> Array:
    distance: Array = np.maximum(abs(x), abs(y)) - 0.78
    return distance


def _triangle(x: Array, y: Array) -> Array:
    slope = math.sqrt(3) / 2
    distance: Array = np.maximum(slope * abs(x) + y / 2, -y) - 0.5
    return distance


def _ring(x: Array, y: Array) -> Array:
    distance: Array = abs(np.hypot(x, y) - 0.7) - 0.25
    return distance


def _cross(x: Array, y: Array) -> Array:
    bar = np.maximum(abs(x) - 0.95, abs(y) - 0.3)
    distance: Array = np.minimum(bar, np.maximum(abs(y) - 0.95, abs(x) - 0.3))
    return distance


def _star(x: Array, y: Array) -> Array:
    angle = np.arctan2(y, x) * 5 / (2 * np.pi)
    corner = abs(angle - np.round(angle)) * 2  # 0 at a tip, 1 between two
    distance: Array = np.hypot(x, y) - 1.05 / (1 + 1.3 * corner)
    return distance


# Signed distance of a point to a shape of about radius 1; negative inside.
SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    "disc": _disc,
    "triangle": _triangle,
    "cross": _cross,
    "ring": _ring,
    "square": _square,
    "star": _star,
}


def _stripes(u: Array, v: Array) -> Array:
    return np.sin(np.pi * u)


def _checks(u: Array, v: Array) -> Array:
    return np.sin(np.pi * u) * np.sin(np.pi * v) * 2


def _dots(u: Array, v: Array) -> Array:
    return 1.4 - 4 * np.hypot(u / 2 - np.round(u / 2), v / 2 - np.round(v / 2))


def _waves(u: Array, v: Array) -> Array:
    return np.sin(np.pi * (u + 0.9 * np.sin(np.pi * v / 2)))


def _bricks(u: Array, v: Array) -> Array:
    row = np.floor(v)
    across, along = v - row - 0.5, (u + row) / 2 - np.round((u + row) / 2)
    return 4 * np.minimum(0.38 - abs(across), 0.88 - 2 * abs(along))


def _plain(u: Array, v: Array) -> Array:
    return np.full_like(u, 1.0)


# A pattern over the plane with a period of about 2, from -1 (one color) to 1 (the other).
TEXTURES: dict[str, Callable[[Array, Array], Array]] = {
    "stripes": _stripes,
    "dots": _dots,
    "checks": _checks,
    "bricks": _bricks,
    "waves": _waves,
    "plain": _plain,
}

MOST_CLASSES = len(SHAPES) * len(TEXTURES)


def class_names(classes: int) -> list[str]:
    """Return shapes times textures, as square as possible: neither alone is the class."""
    if not 1 <= classes <= MOST_CLASSES:
        raise DataError(f"{classes} classes of synthetic images; allowed: 1 to {MOST_CLASSES}")
    shapes = list(SHAPES)[: math.ceil(math.sqrt(classes))]
    pairs = [f"{shape}_{texture}" for texture in TEXTURES for shape in shapes]
    return pairs[:classes]


def draw_image(name: str, size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Render an image (size, size, 3) of the class `name`, such as disc_stripes."""
    shape, _, texture = name.partition("_")
    axis = (np.arange(size) + 0.5) / size * 2 - 1
    x, y = np.meshgrid(axis, axis)
    radius = rng.uniform(0.5, 0.8)
    centre = rng.uniform(-1, 1, 2) * (0.95 - radius)
    turn = rng.uniform(0, 2 * np.pi)
    u, v = _turned(x - centre[0], y - centre[1], turn)
    distance = SHAPES[shape](u / radius, v / radius) * radius * size / 2  # pixels
    # Scale and rotation of the texture, and a soft transition over about a pixel.
    period = rng.uniform(0.25, 0.4)
    along, across = _turned(u + rng.uniform(), v + rng.uniform(), rng.uniform(0, 2 * np.pi))
    pattern = TEXTURES[texture](2 * along / period, 2 * across / period)
    weight = np.clip(pattern * period * size / 8 + 0.5, 0, 1)[..., None]
    front, accent, back = _colors(rng)
    figure = front * weight + accent * (1 - weight)
    ground = back * (1 + 0.5 * _clouds(x, y, rng))[..., None]
    inside = np.clip(0.5 - distance, 0, 1)[..., None]
    light = 1 + 0.2 * _turned(x, y, rng.uniform(0, 2 * np.pi))[0]
    image = (figure * inside + ground * (1 - inside)) * light[..., None]
    image += rng.normal(0, 0.015, image.shape)
    pixels: NDArray[np.uint8] = np.rint(image.clip(0, 1) * 255).astype(np.uint8)
    return pixels


def _turned(x: Array, y: Array, angle: float) -> tuple[Array, Array]:
    cosine, sine = math.cos(angle), math.sin(angle)
    return cosine * x + sine * y, cosine * y - sine * x


def _colors(rng: np.random.Generator) -> Array:
    """Sample two texture colors, one light and one dark, and a background color (3, 3)."""
    colors = rng.uniform(0, 1, (3, 3))
    # Brightness by role, random hue: an invisible texture would teach nothing.
    target = np.array([rng.uniform(0.65, 0.9), rng.uniform(0.1, 0.25), rng.uniform(0.3, 0.6)])
    gray = colors.mean(axis=1, keepdims=True)
    tinted: Array = target[:, None] + 0.6 * (colors - gray)
    return tinted.clip(0, 1)


def _clouds(x: Array, y: Array, rng: np.random.Generator) -> Array:
    """Return a smooth pattern from about -1 to 1."""
    total = np.zeros_like(x)
    for _ in range(6):
        frequency, phase = rng.normal(0, 3, 2), rng.uniform(0, 2 * np.pi)
        total += np.sin(frequency[0] * x + frequency[1] * y + phase)
    return total / 4


def write_images(
    root: Path | str,
    classes: int = 6,
    per_class: int = 50,
    size: int = 64,
    seed: int = 0,
) -> list[str]:
    """Write `per_class` images of each class as ROOT/CLASS/NUMBER.png; return the classes.

    An image depends only on seed, size, class and number.
    """
    root = Path(root)
    names = class_names(classes)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise DataError(
            f"{root} exists; synthetic images are not mixed into other data. Choose another "
            "folder, or remove this one."
        )
    remove_left_overs(root.parent)
    order = [f"{shape}_{texture}" for shape in SHAPES for texture in TEXTURES]
    with new_folder(root) as folder:
        for done, name in enumerate(names):
            (folder / name).mkdir()
            for index in range(per_class):
                rng = sample_rng(seed, order.index(name), index)
                pixels = draw_image(name, size, rng)
                Image.fromarray(pixels).save(folder / name / f"{index:05d}.png", compress_level=1)
                written = done * per_class + index + 1
                report("writing images", written, len(names) * per_class)
    return names
