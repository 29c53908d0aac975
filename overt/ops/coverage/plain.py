"""What faces leave uncovered of the pixels near them, in plain PyTorch: the definition.

Every face is paired with the pixels of its box; all pairs of a batch are one flat list, so that a
picture costs a fixed, small number of kernels. Letters: B meshes, F faces, P pairs. Pixels are
counted at their middles: the first one is at (0, 0).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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


def log_uncovered_plain(
    corners: Tensor,  # (B, F, 3, 2) pixels
    drawn: Tensor,  # (B, F) bool
    size: tuple[int, int],
    softness: float,
    growth: float,
    capacity: int | None,
) -> tuple[Tensor, Tensor]:
    """See `log_uncovered`."""
    batch, (height, width) = len(corners), size
    pairs = pair_up(corners, drawn, size, growth, capacity)
    table = corners.permute(3, 2, 0, 1).flatten(0, 1).flatten(1)  # (2 * 3, B F)
    x, y = table.index_select(1, pairs.face).chunk(2)  # (3, P) each
    distance = signed_distance(x, y, pairs.pixel_xy)
    uncovered = -torch.nn.functional.softplus(-distance / softness)  # log(1 - sigmoid(-d / s))
    if pairs.is_real is not None:
        uncovered = torch.where(pairs.is_real, uncovered, 0.0)
    total = uncovered.new_zeros(batch * height * width).index_add(0, pairs.pixel, uncovered)
    return total.view(batch, height, width), pairs.needed
