"""The feature pyramid of a video: one table of cells for all frames and levels.

Letters: B batch, T frames, N points, L pyramid levels, C feature channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from overt.ops.correlation.api import shared_gradient
from overt.ops.correlation.shared_gradient import SharedGradient
from overt.ops.dispatch import compute_type


class Pyramid(NamedTuple):
    """Feature maps of all frames and levels as one table of cells, indexed by row."""

    cells: Tensor  # (rows, C) float32; rows are ordered level, sample, frame, y, x
    cells_used: Tensor  # the same without gradient, in the type that products are computed in
    shared: SharedGradient | None  # where the correlations of a training step leave theirs
    sizes_xy: Tensor  # (L, 2) width and height of a map
    map_rows: Tensor  # (B, L, T) row of the first cell of each map

    def samples(self, index: Tensor) -> Pyramid:
        """Return the videos with these indices, (B',), which may repeat; no cell is copied."""
        return self._replace(map_rows=self.map_rows.index_select(0, index))

    def frames(self, index: Tensor) -> Pyramid:
        """Return the frames with these indices, (T',), which may repeat; no cell is copied."""
        return self._replace(map_rows=self.map_rows.index_select(2, index))

    def after_queries(self) -> Pyramid:
        """Return a table for refinement only, without the float32 cells."""
        return self if self.shared is None else self._replace(cells=self.cells_used)

    def followed_by(self, later: Pyramid) -> Pyramid:
        """Return these frames followed by those of `later`."""
        rows = torch.cat([self.map_rows, later.map_rows + len(self.cells)], dim=2)
        cells, used = (torch.cat(pair) for pair in zip(self[:2], later[:2], strict=True))
        return Pyramid(cells, used, None, self.sizes_xy, rows)


# A pyramid, the support and positions (B, N, T, 2) to (B, N, L, T, corr_out): what the correlation
# says about each position.
Compare = Callable[[Pyramid, Tensor, Tensor], Tensor]


class FeatureTable(nn.Module):
    """Normalize maps (M, C, H, W) per cell and return all levels as a table of cells."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels

    def forward(self, maps: Tensor) -> Tensor:
        maps = maps.float()
        return self.lay_out(maps / maps.square().sum(1, keepdim=True).clamp(min=1e-12).sqrt())

    def lay_out(self, maps: Tensor) -> Tensor:
        """The cells (rows, C) of all levels, channels-last."""
        tables = []
        for level in range(self.levels):
            if level > 0:
                maps = F.avg_pool2d(maps, 2)
            tables.append(maps.permute(0, 2, 3, 1).flatten(0, 2))
        return torch.cat(tables)


def index_pyramid(
    cells: Tensor, batch: int, frames: int, size: tuple[int, int], levels: int
) -> Pyramid:
    """Return a `FeatureTable` with the offsets of its maps; `size` is that of the finest level."""
    height, width = size
    device = cells.device
    # Computed on the device: copying from the host would synchronize.
    finest = torch.stack([torch.full((levels,), n, device=device) for n in (width, height)], -1)
    sizes_xy = finest >> torch.arange(levels, device=device)[:, None]
    area = sizes_xy.prod(-1)  # (L,)
    first = (area.cumsum(0) - area) * (batch * frames)
    order = torch.arange(batch * frames, device=device).view(batch, 1, frames)
    map_rows = first[:, None] + order * area[:, None]
    used = cells.detach().to(compute_type(cells))
    return Pyramid(cells, used, shared_gradient(cells), sizes_xy, map_rows)


def in_halves(compare: Compare) -> Compare:
    """Do the same for half of the points at a time, to need less memory in backward."""

    def compare_both(pyramid: Pyramid, support: Tensor, cells_xy: Tensor) -> Tensor:
        if support.shape[1] % 2:
            return compare(pyramid, support, cells_xy)
        halves = zip(support.chunk(2, dim=1), cells_xy.chunk(2, dim=1), strict=True)
        return torch.cat([compare(pyramid, *half) for half in halves], dim=1)

    return compare_both
