"""Pictures of point clouds: a skull in gray and its implant in color, from several sides.

Coordinates are normalized, the longest axis of a cloud from -3 to 3: x right, y back, z up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

_PAPER = (250, 250, 250)
_INK = (60, 60, 60)
_BONE = (150, 156, 165)
_COLORS = ((214, 84, 38), (38, 132, 196))  # of rows in turn
_REACH = 4.0  # what a panel shows of the coordinates, from its middle
_SUPERSAMPLE = 3

# Of each view: the axis to the right, the axis up, and the axis toward the eye, with their signs.
_VIEWS = {
    "front": ((0, 1), (2, 1), (1, -1)),
    "side": ((1, 1), (2, 1), (0, 1)),
    "top": ((0, 1), (1, -1), (2, 1)),
    "oblique": None,
}


class Shown(NamedTuple):
    """One row of a picture."""

    title: str
    known: Tensor  # (N, 3)
    implant: Tensor  # (K, 3)


def draw_clouds(rows: Sequence[Shown], size: int = 220) -> Tensor:
    """A row for each cloud, a column for each side: (3, H, W) uint8."""
    width, height = size * len(_VIEWS), size * len(rows)
    paper = Image.new("RGB", (width, height + 18), _PAPER)
    draw = ImageDraw.Draw(paper)
    font = ImageFont.load_default(size=12)
    for column, view in enumerate(_VIEWS):
        draw.text((column * size + 6, 2), view, fill=_INK, font=font)
        for index, row in enumerate(rows):
            color = _COLORS[index % len(_COLORS)]
            panel = _panel(row, view, size, color)
            paper.paste(panel, (column * size, 18 + index * size))
    for index, row in enumerate(rows):
        draw.text((6, 18 + index * size + size - 16), row.title, fill=_INK, font=font)
    return torch.from_numpy(np.array(paper)).permute(2, 0, 1).contiguous()


def _panel(row: Shown, view: str, size: int, color: tuple[int, int, int]) -> Image.Image:
    known, implant = (
        part.detach().to("cpu", torch.float64).nan_to_num(0, 0, 0).numpy()
        for part in (row.known, row.implant)
    )
    points = _turned(np.concatenate([known, implant]), view)  # right, up, toward the eye
    is_implant = np.arange(len(points)) >= len(known)
    side = size * _SUPERSAMPLE
    panel = Image.new("RGB", (side, side), _PAPER)
    draw = ImageDraw.Draw(panel)
    pixels = (points[:, :2] * (1, -1) / _REACH + 1) * side / 2
    # Near points are drawn last and dark, far ones pale.
    near = np.clip((points[:, 2] / _REACH + 1) / 2, 0, 1)
    radius = max(side / 190, 1.0)
    for index in np.argsort(points[:, 2], kind="stable"):
        base = np.array(color if is_implant[index] else _BONE)
        faded = np.array(_PAPER) + (base - _PAPER) * (0.25 + 0.75 * near[index])
        x, y = pixels[index]
        grown = radius * (1.5 if is_implant[index] else 1.0)
        draw.ellipse((x - grown, y - grown, x + grown, y + grown), fill=tuple(faded.astype(int)))
    return panel.resize((size, size), Image.Resampling.LANCZOS)


def _turned(points: NDArray[np.float64], view: str) -> NDArray[np.float64]:
    axes = _VIEWS[view]
    if axes is not None:
        return np.stack([points[:, axis] * sign for axis, sign in axes], axis=1)
    # From the front, from the right and from above.
    about, tilt = np.deg2rad(35), np.deg2rad(25)
    right = points[:, 0] * np.cos(about) + points[:, 1] * np.sin(about)
    toward = points[:, 0] * np.sin(about) - points[:, 1] * np.cos(about)
    up = points[:, 2] * np.cos(tilt) - toward * np.sin(tilt)
    return np.stack([right, up, toward * np.cos(tilt) + points[:, 2] * np.sin(tilt)], axis=1)
