"""CoTracker3 on frames that arrive one by one."""

import numpy as np
import pytest
import torch
from small_recipes import small_tracker, tracker_inputs

from overt.errors import DataError
from overt.recipes.cotracker3.live import LiveTracker
from overt.recipes.cotracker3.online import CoTracker3Online
from overt.recipes.cotracker3.predictor import Predictor

SIZE = (32, 40)


@pytest.fixture(scope="module")
def model():
    return small_tracker(CoTracker3Online)


def live(model, points=3):
    return LiveTracker(model, SIZE, points, SIZE, iters=2, threshold=0.25)


@pytest.mark.parametrize("frames", [2, 6, 8, 11])
def test_frames_that_arrive_give_the_tracks_of_the_whole_video(model, frames):
    video, _ = tracker_inputs(batch=1, frames=frames)
    queries = torch.tensor([[0.0, 8.0, 9.0], [1.0, 20.0, 15.0], [frames - 1.0, 30.0, 20.0]])
    tracker = live(model)
    for time, frame in enumerate(video[0]):
        tracker.observe(frame)
        new = queries[queries[:, 0] == time]
        if len(new):
            tracker.add(new[:, 1:])
        state = tracker.advance()
        assert len(state.points_xy) == int((queries[:, 0] <= time).sum())
    tracks = tracker.finish()
    whole = Predictor(model, SIZE, iters=2)(video, queries[None])
    after = torch.arange(frames)[:, None] >= queries[:, 0]
    assert torch.allclose(tracks.tracks_xy[after], whole.tracks_xy[0][after], atol=1e-3)
    assert torch.allclose(tracks.visibility[after], whole.visibility[0][after], atol=1e-4)
    assert not tracks.visible[~after].any()


def test_trackers_of_one_model_do_not_disturb_each_other(model):
    """Nor does a video that is tracked as a whole meanwhile."""
    one, queries = tracker_inputs(batch=1, frames=9)
    other = one.flip(1)
    points = torch.tensor([[8.0, 9.0], [20.0, 15.0]])

    def steps(frames, tracker):
        for time, frame in enumerate(frames):
            tracker.observe(frame)
            if time == 0:
                tracker.add(points)
            tracker.advance()
            yield

    alone = live(model)
    for _ in steps(one[0], alone):
        continue
    expected = alone.finish()
    first, second = live(model), live(model)
    for _ in zip(steps(one[0], first), steps(other[0], second), strict=True):
        Predictor(model, SIZE, iters=2)(other, queries)
    assert torch.equal(first.finish().tracks_xy, expected.tracks_xy)
    assert not torch.equal(second.finish().tracks_xy, expected.tracks_xy)


def test_a_point_added_after_a_window_waits_at_its_query(model):
    """The window that has run saw a placeholder at (0, 0) instead."""
    video, _ = tracker_inputs(batch=1, frames=model.window_len + model.step)
    early, late = torch.tensor([[8.0, 9.0]]), torch.tensor([[30.0, 20.0]])
    tracker = live(model)
    for time, frame in enumerate(video[0]):
        tracker.observe(frame)
        if time == 0:
            tracker.add(early)
        if time == model.window_len:
            tracker.add(late)
        state = tracker.advance()
        if model.window_len <= time < len(video[0]) - 1:
            assert torch.allclose(state.points_xy[1:], late)
            assert not state.visible[1]
            assert state.visibility[1] == 0
            assert state.rho[1] == 1
            assert state.visibility[0] > 0
    assert state.visibility[1] > 0, "the second window contains the point"
    tracker.add(late)  # no window follows
    tracks = tracker.finish()
    assert torch.allclose(tracks.tracks_xy[-1, 2:], late)
    assert not tracks.visible[:, 2].any()


def test_refusals(model):
    tracker = live(model, points=1)
    with pytest.raises(DataError, match="before the first frame"):
        tracker.add(torch.zeros(1, 2))
    with pytest.raises(DataError, match="no frame arrived"):
        tracker.finish()
    with pytest.raises(DataError, match="a frame of shape"):
        tracker.observe(torch.zeros(3, 8, 8, dtype=torch.uint8))
    tracker.observe(torch.zeros((3, *SIZE), dtype=torch.uint8))
    with pytest.raises(DataError, match="outside the frame"):
        tracker.add(torch.tensor([[100.0, 0.0]]))
    with pytest.raises(DataError, match="was made for 1"):
        tracker.add(torch.zeros(2, 2))
    with pytest.raises(DataError, match=r"expected \(points, 2\)"):
        tracker.add(torch.zeros(3))


def test_points_are_added_from_any_array(model):
    tracker = live(model)
    tracker.observe(torch.zeros((3, *SIZE), dtype=torch.uint8))
    assert tracker.add(np.array([[8.0, 9.0]])) == [0]
    assert tracker.add(torch.zeros(0, 2)) == []
    assert tracker.add([[3, 4]]) == [1]
    assert tracker.advance().points_xy.tolist() == [[8.0, 9.0], [3.0, 4.0]]
