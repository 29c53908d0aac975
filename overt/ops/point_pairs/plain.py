"""Neighborhoods without their padding: only the real (center, neighbor) pairs, one after another.

Letters: B clouds, N points, M centers, U slots of a neighborhood, P pairs. A padded neighborhood
repeats its first hit in the unused slots, nine in ten as a rule; here the first hit occurs once and
carries their number as its weight. An empty ball is point 0 with the weight U.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from overt.ops.point_rows.lists import RowLists


class Pairs(NamedTuple):
    """The packed neighborhoods of a batch of clouds; pairs of a center are neighbors in memory.

    With a given capacity P is that capacity: pairs after the last real one have the weight 0, point
    0 and the center B * M. If `num_pairs` is more than P, the last neighborhoods are cut off.
    """

    points: Tensor  # (P,) int32: row of the neighbor among the B * N points
    centers: Tensor  # (P,) int32: row of the center among the B * M centers
    weights: Tensor  # (P,) float32: slots that the pair stands for
    starts: Tensor  # (B * M + 1,) int32: where the pairs of a center begin
    num_pairs: Tensor  # () int64: how many pairs there are
    batch: int
    slots: int
    lists: RowLists | None = None  # the pairs of each point, for gradients

    @property
    def centers_per_cloud(self) -> int:
        return (self.starts.shape[0] - 1) // self.batch


def pack_pairs_plain(
    index: Tensor, hits: Tensor, starts: Tensor, points: int, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Points, centers and weights of `Pairs`."""
    batch, count, slots = index.shape
    device = index.device
    neighbors = torch.zeros(size, dtype=torch.int32, device=device)
    owners = torch.full((size,), batch * count, dtype=torch.int32, device=device)
    weights = torch.zeros(size, device=device)
    slot = torch.arange(slots, device=device)
    positions = starts[:-1, None] + slot  # (B * M, U)
    real = (slot < hits.clamp(min=1).view(-1, 1)) & (positions < size)
    positions = positions[real]
    rows = index + torch.arange(batch, device=device, dtype=torch.int32).view(-1, 1, 1) * points
    center = torch.arange(batch * count, device=device, dtype=torch.int32)[:, None]
    weight = torch.where(slot == 0, slots - hits.clamp(min=1).view(-1, 1) + 1, 1).float()
    neighbors[positions] = rows.view(-1, slots)[real]
    owners[positions] = center.expand(-1, slots)[real]
    weights[positions] = weight[real]
    return neighbors, owners, weights
