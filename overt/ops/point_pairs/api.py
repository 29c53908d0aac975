"""Neighborhoods without their padding: found by a ball query, packed on the device.

Letters: B clouds, N points, M centers, U slots of a neighborhood, P pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overt.ops.dispatch import use_kernels
from overt.ops.point_pairs.plain import Pairs, pack_pairs_plain
from overt.ops.point_search.api import ball_query


def find_pairs(
    centers: Tensor,  # (B, M, 3)
    points: Tensor,  # (B, N, 3)
    radius: float,
    slots: int,
    capacity: int | None = None,
) -> Pairs:
    """Ball query, packed.

    Without a capacity the host waits for the device to learn the number of pairs.
    """
    index, hits = ball_query(centers, points, radius, slots)
    return pack_pairs(index, hits, points.shape[1], capacity)


def pack_pairs(index: Tensor, hits: Tensor, points: int, capacity: int | None = None) -> Pairs:
    """The pairs of neighborhoods (B, M, U) of which the first `hits` (B, M) slots are real."""
    batch, _, slots = index.shape
    lengths = hits.clamp(min=1).flatten()  # an empty ball is a pair too
    ends = lengths.cumsum(0)
    total = ends[-1]
    size = int(total) if capacity is None else capacity
    starts = torch.nn.functional.pad(ends, (1, 0)).clamp(max=size).int()
    if use_kernels("point_pairs", index):
        from overt.ops.point_pairs.kernels import pack_pairs_fused

        neighbors, owners, weights = pack_pairs_fused(index, hits, starts, points, size)
    else:
        neighbors, owners, weights = pack_pairs_plain(index, hits, starts, points, size)
    return Pairs(neighbors, owners, weights, starts, total, batch, slots)
