"""Points sorted into the cells of a cubic grid, so that a search looks only into cells nearby.

Letters: B clouds, N points, G cells along a side; z varies fastest, so neighbors along z are one
range of the sorted points.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

GRID = 32  # cells along a side
# Cells are larger than the radius of a search by this fraction, more than rounding can matter.
SLACK = 1e-4


class Cells(NamedTuple):
    low: Tensor  # (B, 3) the corner of the grid
    side: Tensor  # (B,) of a cell
    starts: Tensor  # (B * G^3 + 1,) int32: where the points of each cell start
    points: Tensor  # (B * N,) int32: their numbers in their cloud, in the order of the cells
    axes: Tensor  # (3, B * N) their coordinates


def sort_into_cells(points: Tensor, radius: float = 0.0) -> Cells:
    """Sort points (B, N, 3) into cells that are at least as large as the radius."""
    batch, count, _ = points.shape
    points = points.float()
    low, high = points.amin(1), points.amax(1)
    side = (high - low).amax(1) / GRID
    side = side.clamp(min=max(radius * (1 + SLACK), torch.finfo(torch.float32).tiny))
    cells_xyz = (points - low[:, None]) / side[:, None, None]
    x, y, z = cells_xyz.nan_to_num(0.0).clamp(0, GRID - 1).int().unbind(2)
    first = torch.arange(batch, device=points.device, dtype=torch.int32)[:, None] * GRID**3
    keys, order = ((x * GRID + y) * GRID + z + first).flatten().sort(stable=True)
    cells = torch.arange(batch * GRID**3 + 1, device=points.device, dtype=torch.int32)
    starts = torch.searchsorted(keys, cells, out_int32=True)
    axes = points.flatten(0, 1).index_select(0, order).T.contiguous()
    return Cells(low, side, starts, (order % count).int(), axes)
