"""benchmarks/cycle.py: a tracker that moves with the video returns, one that drifts does not."""

import numpy as np
import pytest
from benchmark_scripts import functions

from overt.tracker import VideoTracks

forth_and_back = functions("cycle.py")["forth_and_back"]
FRAMES = np.zeros((6, 3, 40, 40), np.uint8)


class Shifting:
    """Moves every point by a constant shift from frame to frame, and by an error each time."""

    def __init__(self, shift: float, error: float) -> None:
        self.shift, self.error = shift, error

    def __call__(self, frames, queries=None, grid=0):
        if queries is None:
            x, y = np.meshgrid(np.linspace(5, 30, grid), np.linspace(5, 30, grid))
            queries = np.stack([np.zeros(grid**2), x.ravel(), y.ravel()], 1).astype(np.float32)
        steps = np.arange(len(frames))[:, None] - queries[:, 0]
        tracks = np.repeat(queries[None, :, 1:], len(frames), 0)
        tracks[..., 0] += steps * self.shift + np.abs(steps) * self.error
        visible = np.ones(steps.shape, bool)
        visible[:, 0] = False  # one point is lost
        return VideoTracks(tracks, visible, visible, visible, queries, frames, 12.0)


@pytest.mark.parametrize(
    ("error", "returned", "exact"), [(0.0, 1.0, 1.0), (0.2, 1.0, 0.0), (1.0, 0.0, 0.0)]
)
def test_points_are_followed_forth_and_back(error, returned, exact):
    row = forth_and_back(Shifting(2.0, error), FRAMES, 3)
    assert (row.points, row.moving) == (9, 8)
    assert row.visible == pytest.approx(8 / 9)
    assert row.returned == row.moving_returned == returned
    assert row.moving_exact == exact


class Forward:
    """Moves points by the change of brightness since their query, and knows nothing before it."""

    def __call__(self, frames, queries=None, grid=0):
        if queries is None:
            queries = np.array([[0, 5, 5], [0, 20, 8]], np.float32)
        light = frames.mean((1, 2, 3), dtype=np.float32)
        steps = np.arange(len(frames))[:, None] - queries[:, 0]
        moved = light[:, None] - light[queries[:, 0].astype(int)]
        tracks = np.repeat(queries[None, :, 1:], len(frames), 0)
        tracks[..., 0] += np.where(steps < 0, np.nan, moved)
        visible = steps >= 0
        return VideoTracks(tracks, visible, visible, visible, queries, frames, 12.0)


def test_a_tracker_that_never_looks_back_sees_the_reversed_film():
    frames = np.arange(6, dtype=np.uint8)[:, None, None, None] * 2 + FRAMES
    row = forth_and_back(Forward(), frames, 2, forward_only=True)
    assert (row.points, row.moving, row.returned, row.moving_exact) == (2, 2, 1.0, 1.0)
    assert forth_and_back(Forward(), frames, 2).returned == 0
