"""Colors, light and background of synthetic people, and rendering of a batch of pictures."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from overt.geometry.body import BodyModel
from overt.geometry.body_capsule import PARTS
from overt.geometry.silhouette import Raster, part_masks, rasterize

Array = NDArray[np.float64]

SUPERSAMPLING = 2
NOISE = 0.02
_FIXED = np.random.default_rng(24).uniform(0.15, 0.95, size=(PARTS + 1, 3))


class Look(NamedTuple):
    """The chance of one picture."""

    colors: Array  # (25, 3) of the parts, 0 to 1; number 0 is not used
    stripes: Array  # (2,) waves per meter and strength
    light: Array  # (3,) direction toward it
    ambient: float
    background: Array  # (4, 3) colors of the corners
    kind: int  # of background: 0 gradient, 1 noise, 2 rectangles


def draw_look(rng: np.random.Generator, fixed_colors: bool) -> Look:
    """Sample colors, stripes, light and background of one picture."""
    if fixed_colors:
        colors = np.clip(_FIXED + rng.uniform(-0.05, 0.05, size=_FIXED.shape), 0, 1)
        kind = 0
    else:
        colors = rng.uniform(0.1, 1.0, size=_FIXED.shape)
        kind = int(rng.integers(3))
    stripes = np.array([rng.uniform(8, 16), rng.uniform(0.1, 0.25)])
    light = rng.standard_normal(3) + np.array([0, -0.5, -1.5])
    return Look(
        colors,
        stripes,
        light / np.linalg.norm(light),
        rng.uniform(0.3, 0.6),
        rng.uniform(0, 1, size=(4, 3)),
        kind,
    )


class Painted(NamedTuple):
    """Pictures of a batch."""

    pictures: NDArray[np.uint8]  # (B, size, size, 3)
    parts: NDArray[np.uint8]  # (B, size, size), 0 is background
    depth_m: NDArray[np.float32]  # (B, size, size), infinite where there is nothing


def paint(
    pixels: Tensor,  # (B, V, 2)
    depth: Tensor,  # (B, V)
    vertices: Tensor,  # (B, V, 3) in the camera frame, for the light
    model: BodyModel,
    looks: list[Look],
    size: int,
    generators: list[np.random.Generator],
    perspective: bool = True,
) -> Painted:
    """Render shaded, striped people over their backgrounds, supersampled and averaged."""
    batch, side = len(looks), SUPERSAMPLING * size
    # The center of every second fine pixel coincides with that of a coarse one: labels come from
    # these, colors from the 3 x 3 fine pixels around them.
    raster = rasterize(pixels * SUPERSAMPLING, depth, model.faces, (side, side), perspective)
    back = [background(look, side, rng) for look, rng in zip(looks, generators, strict=True)]
    picture = torch.stack(back).flatten(0, 2)  # (B side side, 3)
    covered = raster.mask.flatten().nonzero().squeeze(1)  # (N,)
    picture[covered] = _shade(raster, covered, vertices, model, looks)
    picture = picture.view(batch, side, side, 3).permute(0, 3, 1, 2)
    picture = F.avg_pool2d(picture, 3, SUPERSAMPLING, 1, count_include_pad=False)
    noise = np.stack([rng.standard_normal((3, size, size), np.float32) for rng in generators])
    picture = picture + NOISE * torch.from_numpy(noise)
    levels = (255 * picture.clamp(0, 1)).round().to(torch.uint8).permute(0, 2, 3, 1)
    subsampling = slice(None, None, SUPERSAMPLING)
    parts = part_masks(raster, model.faces, model.part)[:, subsampling, subsampling]
    return Painted(levels.numpy(), parts.numpy(), raster.depth[:, subsampling, subsampling].numpy())


def _shade(
    raster: Raster, covered: Tensor, vertices: Tensor, model: BodyModel, looks: list[Look]
) -> Tensor:
    """Return colors (N, 3) of the covered pixels: part, stripes along the body, one light."""
    image = covered // raster.face[0].numel()  # (N,) picture
    corners = model.faces[raster.face.flatten()[covered]]  # (N, 3)
    weights = raster.weights.flatten(0, 2)[covered][..., None]  # (N, 3, 1)
    part = model.part[corners[:, 0]].long()
    position = (weights * model.template[corners]).sum(1)  # (N, 3) on the body at rest
    normal = (weights * vertex_normals(vertices, model.faces)[image[:, None], corners]).sum(1)
    numbers = {
        name: torch.tensor(np.stack([np.asarray(getattr(look, name)) for look in looks])).float()
        for name in ("colors", "stripes", "light", "ambient")
    }
    towards = (F.normalize(normal, dim=-1) * numbers["light"][image]).sum(-1).clamp_min(0.0)
    ambient = numbers["ambient"][image]
    waves, strength = numbers["stripes"][image].unbind(1)
    stripe = 1 + strength * torch.sin(2 * math.pi * waves * (position[:, 0] + position[:, 1]))
    bright = (ambient + (1 - ambient) * towards) * stripe
    return numbers["colors"][image, part] * bright[:, None]


def vertex_normals(vertices: Tensor, faces: Tensor) -> Tensor:
    """Return unit normals (B, V, 3): area-weighted means of the adjacent faces' normals."""
    first, second, third = (vertices.index_select(1, faces[:, corner]) for corner in range(3))
    normal = torch.linalg.cross(second - first, third - first)  # (B, F, 3)
    total = torch.zeros_like(vertices)
    for corner in range(3):
        total.index_add_(1, faces[:, corner], normal)
    return F.normalize(total, dim=-1)


def background(look: Look, side: int, rng: np.random.Generator) -> Tensor:
    """Return (side, side, 3): a gradient between four corners, coarse noise, or rectangles."""
    corners = torch.tensor(look.background, dtype=torch.float32).view(1, 2, 2, 3)
    back = F.interpolate(
        corners.permute(0, 3, 1, 2), (side, side), mode="bilinear", align_corners=True
    )
    if look.kind == 1:
        coarse = torch.tensor(rng.uniform(0, 1, size=(1, 3, 16, 16)), dtype=torch.float32)
        back = 0.5 * back + 0.5 * F.interpolate(coarse, (side, side), mode="bilinear")
    picture = back[0].permute(1, 2, 0).clone()
    if look.kind == 2:
        for _ in range(int(rng.integers(2, 7))):
            top, left = rng.integers(0, side, size=2)
            height, width = rng.integers(side // 16, side // 2, size=2)
            color = torch.tensor(rng.uniform(0, 1, size=3), dtype=torch.float32)
            picture[top : top + height, left : left + width] = color
    return picture
