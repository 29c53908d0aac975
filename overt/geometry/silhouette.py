"""Meshes to pictures: soft silhouettes with gradients, and depth with faces.

Letters: B meshes, V vertices, F faces, P pairs of a face and a pixel of its box. Pixels are counted
at their middles: the first one is at (0, 0).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from overt.ops.coverage.api import log_uncovered
from overt.ops.coverage.plain import pair_up

NEAR_M = 0.05  # nothing closer to the camera is drawn


def face_corners(points: Tensor, faces: Tensor) -> Tensor:
    """Values (B, V, C) at the corners of the faces (F, 3), as (B, F, 3, C)."""
    # The gradient of index_select adds up in place, where that of brackets sorts first.
    return torch.unflatten(points.index_select(1, faces.flatten()), 1, (-1, 3))


def soft_silhouette(
    pixels: Tensor,  # (B, V, 2) projected vertices
    depth: Tensor,  # (B, V) meters
    faces: Tensor,  # (F, 3)
    size: tuple[int, int],
    softness: float = 0.25,
    growth: float = 1.0,
    capacity: int | None = None,
) -> tuple[Tensor, Tensor]:
    """How much of each pixel the mesh covers, (B, H, W), with gradients; and the pairs needed.

    Each face covers sigmoid(-d / softness) of a pixel at signed distance d (negative inside); what
    several faces leave uncovered multiplies (arXiv:1904.01786). A pixel sees no face further away
    than `growth`. Only faces that look at the camera are drawn: those of a closed mesh cover all.
    """
    corners = face_corners(pixels, faces)  # (B, F, 3, 2)
    drawn = face_corners(depth[..., None], faces).amin((2, 3)) > NEAR_M
    drawn = drawn & looks_at_camera(corners)
    total, needed = log_uncovered(corners, drawn, size, softness, growth, capacity)
    return 1.0 - total.exp(), needed


def looks_at_camera(corners: Tensor) -> Tensor:
    """Whether the corners (..., 3, 2) of faces that turn left from outside look at the camera."""
    first, second = corners[..., 1, :] - corners[..., 0, :], corners[..., 2, :] - corners[..., 0, :]
    return (first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]) < 0


class Raster(NamedTuple):
    """What is in front in each pixel."""

    depth: Tensor  # (B, H, W) meters; infinite where there is nothing
    face: Tensor  # (B, H, W) int64; -1 where there is nothing
    weights: Tensor  # (B, H, W, 3) of the face's corners, in space; 0 where there is nothing

    @property
    def mask(self) -> Tensor:
        return self.face >= 0


@torch.no_grad()
def rasterize(
    pixels: Tensor, depth: Tensor, faces: Tensor, size: tuple[int, int], perspective: bool = True
) -> Raster:
    """The nearest face of each pixel, of those that look at the camera.

    With `perspective=False` depth is linear in the picture.
    """
    batch, (height, width) = len(pixels), size
    corners = face_corners(pixels, faces)
    corner_depth = face_corners(depth[..., None], faces).squeeze(-1)  # (B, F, 3)
    drawn = (corner_depth.amin(2) > NEAR_M) & looks_at_camera(corners)
    pairs = pair_up(corners, drawn, size, growth=0.0)
    face_xy = corners.flatten(0, 1)[pairs.face]  # (P, 3, 2)
    weights, is_inside = barycentric(face_xy, pairs.pixel_xy)
    distances = corner_depth.flatten(0, 1)[pairs.face]  # (P, 3)
    if perspective:
        inverse = weights / distances
        total = inverse.sum(1).clamp_min(1e-12)
        pair_depth, weights = 1.0 / total, inverse / total[:, None]
    else:
        pair_depth = (weights * distances).sum(1)
    keep = is_inside.nonzero().squeeze(1)
    pair_depth, pixel = pair_depth[keep], pairs.pixel[keep]
    nearest = pair_depth.new_full((batch * height * width,), torch.inf)
    nearest = nearest.scatter_reduce(0, pixel, pair_depth, "amin")
    wins = (pair_depth == nearest[pixel]).nonzero().squeeze(1)
    winner = pixel.new_full((batch * height * width,), -1)
    # Of equally near faces the one with the highest number, on every machine.
    winner = winner.scatter_reduce(0, pixel[wins], keep[wins], "amax")
    has = winner >= 0
    chosen = winner.clamp_min(0)
    shape = (batch, height, width)
    if len(pairs.face) == 0:
        none = pixels.new_zeros(*shape, 3)
        return Raster(nearest.view(shape), winner.view(shape), none)
    face = torch.where(has, pairs.face[chosen] % len(faces), -1)
    interpolated = torch.where(has[:, None], weights[chosen], 0.0)
    return Raster(nearest.view(shape), face.view(shape), interpolated.view(*shape, 3))


def barycentric(corners: Tensor, points_xy: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (P, 3) of a triangle's corners at points (P, 2), and whether these are inside."""
    first, second, third = corners.unbind(1)

    def area(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (b[:, 0] - a[:, 0]) * (c[:, 1] - a[:, 1]) - (b[:, 1] - a[:, 1]) * (c[:, 0] - a[:, 0])

    total_area = area(first, second, third)
    safe = torch.where(total_area.abs() < 1e-9, torch.ones_like(total_area), total_area)
    parts = [
        area(points_xy, second, third),
        area(first, points_xy, third),
        area(first, second, points_xy),
    ]
    weights = torch.stack(parts, dim=1) / safe[:, None]
    return weights, (weights >= 0).all(1) & (total_area.abs() >= 1e-9)


def part_masks(raster: Raster, faces: Tensor, part: Tensor) -> Tensor:
    """Part numbers (B, H, W) uint8 of the faces in front; 0 is background."""
    of_face = part[faces[:, 0]]
    values = of_face[raster.face.clamp_min(0)]
    return torch.where(raster.mask, values, torch.zeros_like(values))
