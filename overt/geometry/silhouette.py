"""Meshes to pictures in plain PyTorch: soft silhouettes with gradients, and depth with faces.

Every face is paired with the pixels of its box; all pairs of a batch are one flat list, so that a
picture costs a fixed, small number of kernels. Letters: B meshes, V vertices, F faces, P pairs.
Pixels are counted at their middles: the first one is at (0, 0).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NEAR_M = 0.05  # nothing closer to the camera is drawn


class Pairs(NamedTuple):
    """Faces and pixels that may have to do with each other."""

    face: Tensor  # (P,) among all B F faces
    pixel: Tensor  # (P,) among all B H W pixels
    pixel_xy: Tensor  # (P, 2) x and y of the pixel
    is_real: Tensor | None  # (P,) bool: false where the list was filled up; None: all are real
    needed: Tensor  # () how many pairs there are, which may be more than fit


def pair_up(
    corners: Tensor,  # (B, F, 3, 2) pixels
    drawn: Tensor,  # (B, F) bool
    size: tuple[int, int],
    growth: float,
    capacity: int | None = None,
) -> Pairs:
    """The pixels within each face's box, grown on all sides.

    With a `capacity` the list has that length whatever the mesh, and the host never waits for the
    device; `needed` tells whether it was enough.
    """
    height, width = size
    batch, faces = drawn.shape
    low = (corners.detach().amin(2) - growth).ceil()  # (B, F, 2)
    high = (corners.detach().amax(2) + growth).floor()
    # Limits as plain numbers: a tensor of them would have to be sent to the device each time.
    begin = [low[..., axis].clamp(0, limit) for axis, limit in enumerate((width, height))]
    end = [high[..., axis].clamp(-1, limit - 1) for axis, limit in enumerate((width, height))]
    low = torch.stack(begin, dim=-1).long().flatten(0, 1)  # (B F, 2)
    extent = (torch.stack(end, dim=-1).long().flatten(0, 1) - low + 1).clamp_min(0)
    extent = extent * drawn.flatten()[:, None]
    counts = extent.prod(1)
    ends = counts.cumsum(0)
    needed = ends[-1]
    is_real = None
    if capacity is None:
        number = torch.arange(batch * faces, device=counts.device)
        face = number.repeat_interleave(counts)
        inside = torch.arange(len(face), device=counts.device) - (ends - counts)[face]
    else:
        order = torch.arange(capacity, device=counts.device)
        is_real = order < needed
        face = torch.searchsorted(ends, order, right=True).clamp_max(batch * faces - 1)
        inside = torch.where(is_real, order - (ends - counts)[face], 0)
    across = extent[face, 0].clamp_min(1)
    x = low[face, 0] + inside % across
    y = low[face, 1] + inside // across
    if is_real is not None:
        x, y = torch.where(is_real, x, 0), torch.where(is_real, y, 0)
    pixel = (face // faces) * (height * width) + y * width + x
    return Pairs(face, pixel, torch.stack([x, y], dim=-1).to(corners.dtype), is_real, needed)


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
    batch, (height, width) = len(pixels), size
    corners = face_corners(pixels, faces)  # (B, F, 3, 2)
    drawn = face_corners(depth[..., None], faces).amin((2, 3)) > NEAR_M
    drawn = drawn & looks_at_camera(corners)
    pairs = pair_up(corners, drawn, size, growth, capacity)
    table = corners.permute(3, 2, 0, 1).flatten(0, 1).flatten(1)  # (2 * 3, B F)
    x, y = table.index_select(1, pairs.face).chunk(2)  # (3, P) each
    distance = signed_distance(x, y, pairs.pixel_xy)
    uncovered = -torch.nn.functional.softplus(-distance / softness)  # log(1 - sigmoid(-d / s))
    if pairs.is_real is not None:
        uncovered = torch.where(pairs.is_real, uncovered, 0.0)
    total = uncovered.new_zeros(batch * height * width).index_add(0, pairs.pixel, uncovered)
    return (1.0 - total.exp()).view(batch, height, width), pairs.needed


def looks_at_camera(corners: Tensor) -> Tensor:
    """Whether the corners (..., 3, 2) of faces that turn left from outside look at the camera."""
    first, second = corners[..., 1, :] - corners[..., 0, :], corners[..., 2, :] - corners[..., 0, :]
    return (first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]) < 0


def signed_distance(x: Tensor, y: Tensor, points_xy: Tensor) -> Tensor:
    """Distance (P,) of points (P, 2) from triangles with corners x and y (3, P): negative inside.

    Coordinates lie apart, so that all is computed along the long axis.
    """
    edge_x, edge_y = x.roll(-1, 0) - x, y.roll(-1, 0) - y  # (3, P)
    point_x, point_y = points_xy.unbind(1)
    offset_x, offset_y = point_x - x, point_y - y
    squared = (edge_x.square() + edge_y.square()).clamp_min(1e-12)
    along = ((offset_x * edge_x + offset_y * edge_y) / squared).clamp(0.0, 1.0)
    beside_x, beside_y = offset_x - along * edge_x, offset_y - along * edge_y
    first, second, third = (beside_x.square() + beside_y.square()).unbind(0)
    distance = (torch.minimum(torch.minimum(first, second), third) + 1e-8).sqrt()
    sides = (edge_x * offset_y - edge_y * offset_x).detach()
    is_inside = (sides >= 0).all(0) | (sides <= 0).all(0)
    return torch.where(is_inside, -distance, distance)


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
