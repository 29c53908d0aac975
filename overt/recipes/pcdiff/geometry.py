"""Everything of a forward pass that depends only on coordinates: computed once, then reused.

Letters: B clouds, N points; level l has the coordinates of level l - 1's centers, level 0 those of
the input. Level l of the way down and level l of the way up have the same points, so they share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from overt.ops.point_pairs.api import find_pairs
from overt.ops.point_pairs.plain import Pairs
from overt.ops.point_rows.lists import RowLists, list_terms
from overt.ops.point_search.api import furthest_point_sample, three_nearest
from overt.ops.point_voxels.api import VoxelGrid, grid_coordinates, make_grid


class LevelPlan(NamedTuple):
    """Geometry settings of a level."""

    centers: int
    radius: float
    neighbours: int
    resolutions: tuple[int, ...]  # of the voxel grids that its layers use
    pairs_per_center: int | None  # slots of the packed neighborhoods, on average; None: as found


class Nearest(NamedTuple):
    """The three nearest centers of every point, for interpolation."""

    rows: Tensor  # (B * N, 3) int32: of the centers, among those of the batch
    weights: Tensor  # (B * N, 3)
    lists: RowLists | None = None  # the points that read each center, for gradients


class Level(NamedTuple):
    coords: Tensor  # (B, N, 3)
    grids: dict[int, VoxelGrid]  # by resolution
    centers: Tensor  # (B, M, 3)
    pairs: Pairs
    relative: Tensor  # (P, 3) from the center to the neighbor
    nearest: Nearest


class Geometry(NamedTuple):
    levels: list[Level]

    def fullest(self) -> Tensor:
        """Return the largest fraction of pair slots used on any level; above 1: too few."""
        fill_ratios = [
            level.pairs.num_pairs / max(level.pairs.points.shape[0], 1) for level in self.levels
        ]
        return torch.stack(fill_ratios).amax()


@torch.no_grad()
def find_geometry(
    coords: Tensor, plans: Sequence[LevelPlan], differentiable: bool = True
) -> Geometry:
    """Compute the geometry of clouds (B, N, 3), level by level.

    Without `differentiable` it lacks what only gradients use.
    """
    with torch.autocast(coords.device.type, enabled=False):
        coords = coords.detach().float().contiguous()
        centers = furthest_centers(coords, plans[0].centers)
        levels = []
        for index, plan in enumerate(plans):
            if index > 0:
                # Furthest points of a list in picking order are its prefix.
                centers = first_centers(coords, plan.centers)
            levels.append(find_level(coords, centers, plan, differentiable))
            coords = centers
        return Geometry(levels)


def furthest_centers(coords: Tensor, count: int) -> Tensor:
    """The coordinates (B, count, 3) of furthest points."""
    picks = furthest_point_sample(coords, count).long()
    return coords.gather(1, picks[..., None].expand(-1, -1, 3))


def first_centers(coords: Tensor, count: int) -> Tensor:
    """Return the first points; repeat point 0 if there are too few, as furthest points do."""
    missing = count - coords.shape[1]
    if missing <= 0:
        return coords[:, :count].contiguous()
    return torch.cat([coords, coords[:, :1].expand(-1, missing, -1)], dim=1)


def find_level(
    coords: Tensor, centers: Tensor, plan: LevelPlan, differentiable: bool = True
) -> Level:
    """Grids, neighborhoods and nearest centers of one level."""
    batch = len(coords)
    slots = plan.pairs_per_center
    # On the CPU the number of pairs is known immediately.
    capacity = (
        None if slots is None or coords.device.type == "cpu" else slots * plan.centers * batch
    )
    pairs = find_pairs(centers, coords, plan.radius, plan.neighbours, capacity)
    last = batch * plan.centers - 1
    to = coords.view(-1, 3).index_select(0, pairs.points)
    since = centers.view(-1, 3).index_select(0, pairs.centers.clamp(max=last))
    index, weight = three_nearest(coords, centers)
    first = torch.arange(batch, device=coords.device, dtype=torch.int32) * plan.centers
    nearest = Nearest((index + first[:, None, None]).view(-1, 3), weight.view(-1, 3))
    if differentiable:
        # A row of unused pairs belongs to no neighbor, and has no gradient.
        used = torch.where(pairs.centers <= last, pairs.points, -1)
        pairs = pairs._replace(lists=list_terms(used[:, None], coords[..., 0].numel()))
        nearest = nearest._replace(lists=list_terms(nearest.rows, last + 1))
    return Level(
        coords,
        {
            resolution: make_grid(grid_coordinates(coords, resolution), resolution, differentiable)
            for resolution in plan.resolutions
        },
        centers,
        pairs,
        to - since,
        nearest,
    )
