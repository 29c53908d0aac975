"""Which points: furthest-point sampling, ball query, three nearest centres. Indices, no gradients.

Letters: B clouds, N points, M centres, U slots of a neighbourhood. Coordinates are (B, N, 3)
float32; a squared distance is dx dx + dy dy + dz dz in float32. The plain functions are the
definition, for any device; on CUDA the Triton twins make the same choices.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from overt.ops import HAS_TRITON

TIE_STRIDE = 512  # of equally far points the one with the smallest (k mod 512, k) is taken
SMALLEST, LARGEST = 1e-10, 1e10  # squared distances of three neighbours are kept within these
_PLAIN_LIMIT = 2**24  # distances held at a time


def furthest_point_sample_plain(coords: Tensor, count: int) -> Tensor:
    """See `furthest_point_sample`."""
    batch, points, _ = coords.shape
    number = torch.arange(points, device=coords.device)
    # In this order the first of equal maxima is the one that the tie rule asks for.
    order = torch.argsort(number % TIE_STRIDE * points + number // TIE_STRIDE)
    axes = coords.detach().float()[:, order].permute(2, 0, 1).contiguous()  # (3, B, N)
    nearest = torch.full((batch, points), 1e38, device=coords.device)
    picks = torch.zeros((batch, count), dtype=torch.int64, device=coords.device)
    for step in range(1, min(count, points)):  # then all are picked: point 0 again and again
        last = picks[:, step - 1 : step]
        x, y, z = (axis - axis.gather(1, last) for axis in axes)
        nearest = torch.minimum(nearest, x * x + y * y + z * z)
        picks[:, step] = nearest.argmax(1)
    return order[picks].int()


def furthest_point_sample(
    coords: Tensor,  # (B, N, 3)
    count: int,
) -> Tensor:
    """Point 0, then again and again the point furthest from all picked so far: (B, count) int32.

    Once every point is picked, point 0 is picked again.
    """
    if not (HAS_TRITON and coords.is_cuda):
        return furthest_point_sample_plain(coords, count)
    from overt.ops.point_search_kernels import furthest_point_sample_fused

    picks: Tensor = furthest_point_sample_fused(coords, count)
    return picks


def squared_radius(radius: float) -> float:
    """The square as the definition has it, both factors and the product in float32."""
    return float(np.float32(radius) * np.float32(radius))


def ball_query_plain(
    centers: Tensor, points: Tensor, radius: float, slots: int
) -> tuple[Tensor, Tensor]:
    """See `ball_query`."""
    batch, count, _ = centers.shape
    limit = squared_radius(radius)
    index = torch.zeros((batch * count, slots), dtype=torch.int32, device=points.device)
    hits = torch.zeros(batch * count, dtype=torch.int32, device=points.device)
    rows = max(_PLAIN_LIMIT // points.shape[1], 1)
    for cloud in range(batch):
        x, y, z = points[cloud].detach().float().unbind(1)
        for first in range(0, count, rows):
            part = centers[cloud, first : first + rows].detach().float()
            squares = (part[:, 0, None] - x).square_()
            squares += (part[:, 1, None] - y).square_()
            squares += (part[:, 2, None] - z).square_()
            center, point = (squares < limit).nonzero(as_tuple=True)  # in order of both
            found = torch.bincount(center, minlength=len(part))
            slot = torch.arange(len(center), device=center.device)
            slot -= (found.cumsum(0) - found)[center]
            kept = slot < slots
            start = cloud * count + first
            first_hit = kept & (slot == 0)
            # Unused slots repeat the first hit.
            index[start + center[first_hit]] = point[first_hit].int()[:, None]
            index[start + center[kept], slot[kept]] = point[kept].int()
            hits[start : start + len(part)] = found.clamp(max=slots)
    return index.view(batch, count, slots), hits.view(batch, count)


def ball_query(
    centers: Tensor,  # (B, M, 3)
    points: Tensor,  # (B, N, 3)
    radius: float,
    slots: int,
) -> tuple[Tensor, Tensor]:
    """The first `slots` points nearer than the radius, by index: (B, M, U) and how many, (B, M).

    Unused slots repeat the first hit; without any hit they hold point 0. Both are int32.
    """
    if not (HAS_TRITON and points.is_cuda):
        return ball_query_plain(centers, points, radius, slots)
    from overt.ops.point_search_kernels import ball_query_fused

    index, hits = ball_query_fused(centers, points, radius, slots)
    return index, hits


def three_nearest_plain(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """See `three_nearest`."""
    batch, count, _ = points.shape
    index = torch.zeros((batch, count, 3), dtype=torch.int32, device=points.device)
    squares = torch.full((batch, count, 3), LARGEST, device=points.device)
    known = min(3, centers.shape[1])
    rows = max(_PLAIN_LIMIT // max(centers.shape[1], 1), 1)
    for cloud in range(batch):
        x, y, z = centers[cloud].detach().float().unbind(1)
        for first in range(0, count, rows):
            part = points[cloud, first : first + rows].detach().float()
            distance = (part[:, 0, None] - x).square_()
            distance += (part[:, 1, None] - y).square_()
            distance += (part[:, 2, None] - z).square_()  # (rows, M)
            for rank in range(known):
                # argmin gives the first of equal ones: the earlier centre, as asked.
                least = distance.argmin(1, keepdim=True)
                here = slice(first, first + len(part))
                index[cloud, here, rank] = least.squeeze(1).int()
                squares[cloud, here, rank] = distance.gather(1, least).squeeze(1)
                distance.scatter_(1, least, torch.inf)
    return index, squares.clamp(SMALLEST, LARGEST)


def three_nearest(
    points: Tensor,  # (B, N, 3)
    centers: Tensor,  # (B, M, 3)
) -> tuple[Tensor, Tensor]:
    """The three nearest centres of every point, (B, N, 3) int32, and interpolation weights.

    Weights go with one over the squared distance and add up to 1. Of equally near centres the
    earlier comes first; a centre that does not exist is centre 0, very far away.
    """
    if HAS_TRITON and points.is_cuda:
        from overt.ops.point_search_kernels import three_nearest_fused

        index, squares = three_nearest_fused(points, centers)
    else:
        index, squares = three_nearest_plain(points, centers)
    first, second, third = squares.double().unbind(2)
    products = torch.stack([second * third, first * third, first * second], dim=2).float()
    return index, products / products.sum(2, keepdim=True)
