"""How the colors of a frame change. This file does not import torch."""

from __future__ import annotations

from typing import NamedTuple

OPERATORS = ("brightness", "contrast", "saturation", "hue")  # the kernels number them so


class Jitter(NamedTuple):
    """Factors of three operators, the rotation of the hue, and the order in which they act."""

    order: tuple[str, ...]
    brightness: float
    contrast: float
    saturation: float
    hue: float
