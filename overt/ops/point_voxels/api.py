"""Between points and voxels: averages of the points in a cell, and trilinear values at the points.

Letters: B clouds, N points, C channels, r cells along a side; V = r^3, x varies slowest. Features
are rows, (B, N, C) and (B, V, C). A grid depends on coordinates only: it is made once for all
layers that see the same points. Points are binned by rounding and read between cell centers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from overt.ops.point_rows.api import mix_rows, spread_rows
from overt.ops.point_rows.lists import RowLists, list_lowest_corners, list_terms


class VoxelGrid(NamedTuple):
    """Where the points of a batch of clouds lie in a cubic grid."""

    resolution: int
    batch: int
    bins: Tensor  # (B * N, 1) int32: row of a point's cell among the B * V cells of the batch
    fractions: Tensor  # (B * N, 1) one over the number of points in that cell
    occupied: Tensor  # (B, V, 1) 1 where a cell holds a point, else 0
    corners: Tensor  # (B * N, 8) int32: rows of the cells around a point; bits x, y, z
    corner_weights: Tensor  # (B * N, 8)
    bin_lists: RowLists | None  # the points of each cell
    corner_lists: RowLists | None  # the points above each cell, for the gradient of reading


def grid_coordinates(
    coords: Tensor,  # (B, N, 3)
    resolution: int,
    normalize: bool = True,
    eps: float = 0.0,
) -> Tensor:
    """Coordinates in cells, 0 to r - 1: the cloud centered and scaled into the unit ball, or as is.

    A cloud whose points are all equal lies in the middle, and a NaN in the first cell:
    its integer would differ from processor to processor, and be no cell at all.
    """
    centered = coords.detach().float()
    centered = centered - centered.mean(1, keepdim=True)
    if normalize:
        radius = centered.norm(dim=2, keepdim=True).amax(1, keepdim=True)  # (B, 1, 1)
        diameter = (radius * 2 + eps).clamp_min(torch.finfo(torch.float32).tiny)
        unit = centered / diameter + 0.5
    else:
        unit = (centered + 1) / 2
    return torch.clamp((unit * resolution).nan_to_num(0.0), 0, resolution - 1)


def make_grid(positions: Tensor, resolution: int, differentiable: bool = True) -> VoxelGrid:
    """The grid of points at `positions`, (B, N, 3) in cells as `grid_coordinates` gives them.

    Without `differentiable` it lacks what only gradients use.
    """
    batch, points, _ = positions.shape
    cells = resolution**3
    first = torch.arange(batch, device=positions.device, dtype=torch.int32)[:, None] * cells
    # torch rounds halves to even, as the definition asks.
    x, y, z = positions.round().int().unbind(2)
    bins = ((x * resolution + y) * resolution + z + first).flatten()
    counts = positions.new_zeros(batch * cells).index_add(0, bins, positions.new_ones(len(bins)))

    low = positions.floor()
    fraction = positions - low  # (B, N, 3)
    x, y, z = low.int().unbind(2)
    lowest = (x * resolution + y) * resolution + z + first  # (B, N)
    # On a cell's center the upper neighbor has no weight and may not exist: the cell itself.
    up = (fraction > 0).int()
    steps_up = (up[..., 0] * resolution**2, up[..., 1] * resolution, up[..., 2])
    corners, weights = [], []
    for corner in range(8):
        bits = (corner >> 2 & 1, corner >> 1 & 1, corner & 1)
        row, weight = lowest, torch.ones_like(lowest, dtype=torch.float32)
        for axis, upper in enumerate(bits):
            along = fraction[..., axis]
            row = row + steps_up[axis] if upper else row
            weight = weight * (along if upper else 1 - along)
        corners.append(row)
        weights.append(weight)
    all_corners = torch.stack(corners, dim=2).view(batch * points, 8)
    corner_lists = (
        list_lowest_corners(all_corners, batch * cells, resolution) if differentiable else None
    )
    return VoxelGrid(
        resolution,
        batch,
        bins[:, None],
        counts.index_select(0, bins).reciprocal()[:, None],
        (counts > 0).float().view(batch, cells, 1),
        all_corners,
        torch.stack(weights, dim=2).view(batch * points, 8),
        list_terms(bins[:, None], batch * cells),
        corner_lists,
    )


def average_voxels(features: Tensor, grid: VoxelGrid) -> Tensor:
    """The mean of the features (B, N, C) in each cell, (B, V, C); 0 in empty cells."""
    count = grid.batch * grid.resolution**3
    rows = spread_rows(
        features.flatten(0, 1), grid.bins, grid.fractions, count=count, lists=grid.bin_lists
    )
    return torch.unflatten(rows, 0, (grid.batch, -1))


def read_voxels(voxels: Tensor, grid: VoxelGrid) -> Tensor:
    """Trilinear values (B, N, C) of cells (B, V, C) at the points."""
    rows = mix_rows(voxels.flatten(0, 1), grid.corners, grid.corner_weights, grid.corner_lists)
    return torch.unflatten(rows, 0, (grid.batch, -1))
