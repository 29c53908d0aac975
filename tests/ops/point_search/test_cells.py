"""overt/ops/point_search/cells.py: sorted points, and where each cell's start."""

import math

import torch
from point_clouds import cloud

from overt.ops.point_search.cells import GRID, sort_into_cells


def test_every_point_is_in_the_range_of_its_cell() -> None:
    points = cloud(2, 300, "random")
    points[1] *= 0.1
    radius = 0.3
    low, side, starts, numbers, axes = sort_into_cells(points, radius)
    assert starts[0] == 0
    assert starts[-1] == 600
    assert (starts.diff() >= 0).all()
    assert (side >= radius).all()
    for row in range(2):
        own = numbers[row * 300 : (row + 1) * 300]
        assert sorted(own.tolist()) == list(range(300))
        positions = points[row, own.long()]
        torch.testing.assert_close(
            axes[:, row * 300 : (row + 1) * 300].T, positions, rtol=0, atol=0
        )
        cells = ((positions - low[row]) / side[row]).int().clamp(max=GRID - 1)
        keys = (cells[:, 0] * GRID + cells[:, 1]) * GRID + cells[:, 2] + row * GRID**3
        at = torch.arange(row * 300, (row + 1) * 300)
        assert (starts[keys.long()] <= at).all()
        assert (at < starts[keys.long() + 1]).all()


def test_a_single_position_and_nan_are_cells_too() -> None:
    points = torch.zeros(2, 5, 3)
    points[1, 2] = math.nan
    starts = sort_into_cells(points).starts
    assert starts[-1] == 10
    assert starts[GRID**3] == 5
