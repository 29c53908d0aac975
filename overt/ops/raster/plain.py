"""The nearest face of each pixel, in plain PyTorch: the definition.

Letters: B meshes, V vertices, F faces, P pairs of a face and a pixel of its box. Pixels are counted
at their middles: the first one is at (0, 0).
"""

from __future__ import annotations

import torch
from torch import Tensor

from overt.ops.coverage.plain import pair_up

NEAR_M = 0.05  # nothing closer to the camera is drawn
SMALLEST_AREA = 1e-9  # square pixels, twice the area of a face; smaller ones cover no pixel
SMALLEST_INVERSE = 1e-12  # one over meters


def face_corners(points: Tensor, faces: Tensor) -> Tensor:
    """Values (B, V, C) at the corners of the faces (F, 3), as (B, F, 3, C)."""
    # The gradient of index_select adds up in place, where that of brackets sorts first.
    return torch.unflatten(points.index_select(1, faces.flatten()), 1, (-1, 3))


def looks_at_camera(corners: Tensor) -> Tensor:
    """Whether the corners (..., 3, 2) of faces that turn left from outside look at the camera."""
    first, second = corners[..., 1, :] - corners[..., 0, :], corners[..., 2, :] - corners[..., 0, :]
    return (first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]) < 0


def barycentric(corners: Tensor, points_xy: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (P, 3) of a triangle's corners at points (P, 2), and whether these are inside."""
    first, second, third = corners.unbind(1)

    def area(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (b[:, 0] - a[:, 0]) * (c[:, 1] - a[:, 1]) - (b[:, 1] - a[:, 1]) * (c[:, 0] - a[:, 0])

    total_area = area(first, second, third)
    has_area = total_area.abs() >= SMALLEST_AREA
    safe = torch.where(has_area, total_area, torch.ones_like(total_area))
    parts = [
        area(points_xy, second, third),
        area(first, points_xy, third),
        area(first, second, points_xy),
    ]
    weights = torch.stack(parts, dim=1) / safe[:, None]
    return weights, (weights >= 0).all(1) & has_area


def nearest_faces_plain(
    pixels: Tensor, depth: Tensor, faces: Tensor, size: tuple[int, int], perspective: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """See `nearest_faces`."""
    shape = (len(pixels), *size)
    corners = face_corners(pixels, faces)
    corner_depth = face_corners(depth[..., None], faces).squeeze(-1)  # (B, F, 3)
    drawn = (corner_depth.amin(2) > NEAR_M) & looks_at_camera(corners)
    pairs = pair_up(corners, drawn, size, growth=0.0)
    face_xy = corners.flatten(0, 1).index_select(0, pairs.face)  # (P, 3, 2)
    weights, is_inside = barycentric(face_xy, pairs.pixel_xy)
    distances = corner_depth.flatten(0, 1).index_select(0, pairs.face)  # (P, 3)
    if perspective:
        inverse = weights / distances
        total = inverse.sum(1).clamp_min(SMALLEST_INVERSE)
        pair_depth, weights = 1.0 / total, inverse / total[:, None]
    else:
        pair_depth = (weights * distances).sum(1)
    keep = is_inside.nonzero().squeeze(1)
    pair_depth, pixel = pair_depth.index_select(0, keep), pairs.pixel.index_select(0, keep)
    nearest = pair_depth.new_full((shape[0] * shape[1] * shape[2],), torch.inf)
    nearest = nearest.scatter_reduce(0, pixel, pair_depth, "amin")
    wins = (pair_depth == nearest.index_select(0, pixel)).nonzero().squeeze(1)
    winner = pixel.new_full(nearest.shape, -1)
    # Of equally near faces the one with the highest number, on every machine.
    winner = winner.scatter_reduce(0, pixel[wins], keep[wins], "amax")
    if len(pairs.face) == 0:
        return nearest.view(shape), winner.view(shape), pixels.new_zeros(*shape, 3)
    has = winner >= 0
    chosen = winner.clamp_min(0)
    face = torch.where(has, pairs.face.index_select(0, chosen) % len(faces), -1)
    interpolated = torch.where(has[:, None], weights.index_select(0, chosen), 0.0)
    return nearest.view(shape), face.view(shape), interpolated.view(*shape, 3)
