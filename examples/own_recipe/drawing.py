"""Noisy drawings of circles, squares and triangles, all of them drawn from a given generator."""

import math

import numpy as np
from numpy.typing import NDArray

KINDS = ("circle", "square", "triangle")


def draw(kind: str, size: int, noise: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """A bright shape at a random position, size, rotation and color: (3, H, W), 0 to 1."""
    area = math.pi * (size * rng.uniform(0.2, 0.32)) ** 2  # the area gives no shape away
    turn = rng.uniform(-0.4, 0.4)
    center = size / 2 + rng.uniform(-0.1, 0.1, size=2) * size
    inner, outer = rng.uniform(0.6, 1.0, size=3), rng.uniform(0.0, 0.4, size=3)

    y, x = np.mgrid[0:size, 0:size] - center[:, None, None]
    inside = np.clip(0.5 - _distance(kind, x, y, turn, area), 0, 1)  # (H, W), soft at the edge
    image = inside * inner[:, None, None] + (1 - inside) * outer[:, None, None]  # (3, H, W)
    image += rng.normal(0, noise, size=image.shape)
    return image.clip(0, 1).astype(np.float32)


def _distance(
    kind: str, x: NDArray[np.float64], y: NDArray[np.float64], turn: float, area: float
) -> NDArray[np.float64]:
    """Pixels from the edge of a shape of this area, negative inside."""
    radius = np.hypot(x, y)
    if kind == "circle":
        return radius - math.sqrt(area / math.pi)
    sides = {"triangle": 3, "square": 4}[kind]
    apothem = math.sqrt(area / (sides * math.tan(math.pi / sides)))
    # Angle from the middle of the nearest side.
    sector = 2 * math.pi / sides
    angle = (np.arctan2(y, x) - turn) % sector - sector / 2
    return radius * np.cos(angle) - apothem
