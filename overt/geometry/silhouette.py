"""Meshes to pictures: soft silhouettes with gradients, and depth with faces.

Letters: B meshes, V vertices, F faces. Pixels are counted at their middles: the first one is at
(0, 0).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from overt.ops.coverage.api import log_uncovered
from overt.ops.raster.api import nearest_faces
from overt.ops.raster.plain import NEAR_M, face_corners, looks_at_camera


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
    return Raster(*nearest_faces(pixels, depth, faces, size, perspective))


def part_masks(raster: Raster, faces: Tensor, part: Tensor) -> Tensor:
    """Part numbers (B, H, W) uint8 of the faces in front; 0 is background."""
    of_face = part[faces[:, 0]]
    values = of_face[raster.face.clamp_min(0)]
    return torch.where(raster.mask, values, torch.zeros_like(values))
