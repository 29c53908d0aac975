"""Which points: furthest-point sampling, ball query, three nearest centers. Indices, no gradients.

Letters: B clouds, N points, M centers, U slots of a neighborhood. Coordinates are (B, N, 3)
float32; a squared distance is dx dx + dy dy + dz dz in float32.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

TIE_STRIDE = 512  # of equally far points the one with the smallest (k mod 512, k) is taken
SMALLEST, LARGEST = 1e-10, 1e10  # squared distances of three neighbors are kept within these
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
            hit_counts = torch.bincount(center, minlength=len(part))
            slot = torch.arange(len(center), device=center.device)
            slot -= (hit_counts.cumsum(0) - hit_counts)[center]
            kept = slot < slots
            start = cloud * count + first
            first_hit = kept & (slot == 0)
            # Unused slots repeat the first hit.
            index[start + center[first_hit]] = point[first_hit].int()[:, None]
            index[start + center[kept], slot[kept]] = point[kept].int()
            hits[start : start + len(part)] = hit_counts.clamp(max=slots)
    return index.view(batch, count, slots), hits.view(batch, count)


def three_nearest_plain(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """See `three_nearest`."""
    batch, count, _ = points.shape
    index = torch.zeros((batch, count, 3), dtype=torch.int32, device=points.device)
    squares = torch.full((batch, count, 3), LARGEST, device=points.device)
    neighbor_count = min(3, centers.shape[1])
    rows = max(_PLAIN_LIMIT // max(centers.shape[1], 1), 1)
    for cloud in range(batch):
        x, y, z = centers[cloud].detach().float().unbind(1)
        for first in range(0, count, rows):
            part = points[cloud, first : first + rows].detach().float()
            distance = (part[:, 0, None] - x).square_()
            distance += (part[:, 1, None] - y).square_()
            distance += (part[:, 2, None] - z).square_()  # (rows, M)
            for rank in range(neighbor_count):
                # argmin gives the first of equal ones: the earlier center, as asked.
                least = distance.argmin(1, keepdim=True)
                chunk = slice(first, first + len(part))
                index[cloud, chunk, rank] = least.squeeze(1).int()
                squares[cloud, chunk, rank] = distance.gather(1, least).squeeze(1)
                distance.scatter_(1, least, torch.inf)
    return index, squares.clamp(SMALLEST, LARGEST)
