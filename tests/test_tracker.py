"""`overt.load_tracker`: points of any video in three lines."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_COTRACKER3, SMALL_COTRACKER3_ONLINE

import overt
from overt.checkpoint.manager import CheckpointManager
from overt.commands.ckpt import export
from overt.config import build_recipe, load
from overt.errors import ConfigError, DataError
from overt.progress import told_to
from overt.recipes.cotracker3 import recipe as cotracker3
from overt.tracker import (
    Tracker,
    VideoTracks,
    choose_queries,
    drawn_fps,
    official_recipe,
    open_tracker,
    point_counter,
    read_frames,
)

FRAMES, HEIGHT, WIDTH = 5, 36, 48


@pytest.fixture(scope="module")
def video():
    rng = np.random.default_rng(0)
    return rng.integers(0, 255, (FRAMES, HEIGHT, WIDTH, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def tracker(tmp_path_factory):
    torch.manual_seed(0)
    recipe = SMALL_COTRACKER3.recipe(tmp_path_factory.mktemp("data"))
    model = recipe.build_model().eval()
    torch.nn.init.normal_(model.updateformer.flow_head.weight, std=0.1)
    return Tracker(recipe, model, "cotracker3_tiny")


def test_a_device_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match="device=gpu; use auto, cpu, cuda"):
        overt.load_tracker("tiny", device="gpu")


def test_a_recipe_for_the_weights_that_ship_is_refused():
    """It was ignored."""
    with pytest.raises(ConfigError, match="recipe='lbm', but 'small' is cotracker3_small"):
        overt.load_tracker(recipe="lbm")
    assert open_tracker("tiny", recipe="cotracker3_tiny")[2] == "cotracker3_tiny"


def test_three_lines(tmp_path, video):
    """The tracker that ships follows a grid and draws it."""
    tracker = overt.load_tracker("small", device="cpu")
    tracks = tracker(video[:2], grid=2)
    assert tracks.tracks_xy.shape == (2, 4, 2)
    assert tracks.visible.shape == (2, 4)
    assert tracks.draw(tmp_path / "out.gif").stat().st_size > 0
    for name in ("tracks.npz", "new/tracks"):
        with np.load(tracks.save(tmp_path / name)) as stored:
            assert np.array_equal(stored["queries"], tracks.queries)


def test_chunks_need_the_support_points_only(tracker, video, monkeypatch):
    """Points of different chunks do not meet, and each chunk has the same support points."""
    queries = [[0, 10, 10], [2, 20, 20], [0, 40, 30]]
    done: list[float] = []
    monkeypatch.setattr(cotracker3, "POINTS_PER_CHUNK", 1)
    frames = torch.from_numpy(read_frames(video)[0])
    points = torch.tensor(queries, dtype=torch.float32)
    with torch.inference_mode():
        chunked = tracker.recipe.track_points(tracker.model, frames, points, report=done.append)
        alone = tracker.recipe.track_points(tracker.model, frames, points[1:2])
    assert done == pytest.approx([1 / 3, 2 / 3, 1])
    assert torch.allclose(chunked.tracks_xy[:, 1], alone.tracks_xy[:, 0], atol=1e-3)


def test_as_hub_takes_what_is_before_the_query_from_the_reversed_video(tracker, video):
    queries = [[3, 20, 20], [0, 10, 30]]
    usual, hub = (tracker(video, queries, as_hub=as_hub) for as_hub in (False, True))
    turned = tracker(video[::-1].copy(), [[FRAMES - 1 - t, x, y] for t, x, y in queries])
    assert np.allclose(hub.tracks_xy[3:], usual.tracks_xy[3:], atol=1e-3)
    assert np.allclose(hub.tracks_xy[:3, 0], turned.tracks_xy[::-1][:3, 0], atol=1e-3)
    assert not np.allclose(hub.tracks_xy[:3, 0], usual.tracks_xy[:3, 0], atol=1e-2)
    before = hub.visibility > 0.9
    assert np.array_equal(hub.visible, before)


def test_which_points_are_meant(video):
    frames = read_frames(video)[0]
    assert frames.shape == (FRAMES, 3, HEIGHT, WIDTH)
    assert len(choose_queries(frames, None, None, None, False, 0)) == 400
    dense = choose_queries(frames, None, None, None, True, 2)
    assert len(dense) == HEIGHT * WIDTH
    assert (dense[:, 0] == 2).all()
    left = np.zeros((HEIGHT, WIDTH), bool)
    left[:, : WIDTH // 2] = True
    masked = choose_queries(frames, None, 10, left, False, 0)
    assert len(masked) == 50
    assert (masked[:, 1] < WIDTH / 2).all()
    assert np.array_equal(choose_queries(frames, dense, None, None, False, None), dense)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_frame": 9}, "frames 0 to 4"),
        ({"query_frame": 0.5}, "query_frame=0.5; the video has frames 0 to 4"),
        ({"grid": 0}, "grid=0; expected an integer, from 1 to 1000"),
        ({"grid": -1}, "grid=-1; expected an integer"),
        ({"grid": 2.5}, "grid=2.5; expected an integer"),
        ({"grid": 1001}, "from 1 to 1000"),
        ({"frames": 1.5}, "frames=1.5; expected an integer, at least 1"),
        ({"queries": [[0, 1, 1], [0, 1]]}, "queries cannot be read as one array"),
        ({"queries": [["0", "1", "1"]]}, "expected numbers of shape"),
        ({"queries": np.zeros((0, 3))}, "at least one"),
        ({"queries": [[0, 1, 1], [0.5, 1, 1]]}, "query 1 starts in frame 0.5"),
        ({"queries": [[-1, 1, 1]]}, "frame 0 to 4"),
        ({"queries": [[0, np.nan, 1]]}, "1 of 1 queries lie outside"),
        ({"queries": [[0, 1, 1]], "query_frame": 0}, "not both"),
        ({"queries": [[0, 1]]}, r"\(N, 3\)"),
        ({"queries": [[0, 1, 1]], "grid": 3}, "not both"),
        ({"dense": True, "grid": 3}, "drop grid"),
        ({"mask": np.zeros((2, 2))}, "rows"),
        ({"mask": "mask.png"}, "rows"),
        ({"mask": [[1, 0], [1]]}, "mask cannot be read as one array"),
        ({"mask": np.zeros((HEIGHT, WIDTH))}, "raise grid"),
    ],
)
def test_refused_points(tracker, video, options, message):
    with pytest.raises((ConfigError, DataError), match=message):
        tracker(video, **options)


def test_refused_videos_and_files(tmp_path, tracker):
    with pytest.raises(DataError, match="expected bytes"):
        tracker(np.zeros((2, 8, 8)))
    for shape in ((3, 1, 50, 3), (2, 0, 50, 3), (0, 8, 8, 3)):
        with pytest.raises(DataError, match="of 2 x 2 pixels"):
            tracker(np.zeros(shape, np.uint8), grid=1)
    with pytest.raises(DataError, match=r"shape \(2, 8, 9, 3\) and type float64"):
        tracker(np.zeros((2, 8, 9, 3)))
    with pytest.raises(DataError, match="video cannot be read as one array"):
        tracker([[1, 2], [3]])
    with pytest.raises(DataError, match="no such file"):
        tracker(tmp_path / "none.mp4")
    assert official_recipe(Path("scaled_offline.pth")) == "cotracker3_offline"
    with pytest.raises(ConfigError, match="recipe=NAME"):
        official_recipe(Path("model.pth"))


def test_an_exported_file_brings_its_settings(tmp_path):
    config = load(["recipe=cotracker3_tiny", *SMALL_COTRACKER3.sizes(), "model.eval_iters=5"])
    model = build_recipe(config).build_model()
    CheckpointManager(tmp_path / "run").save_checkpoint(0, model, config_yaml=config.text)
    file = tmp_path / "a.safetensors"
    export(tmp_path / "run" / "latest", "safetensors", file)
    recipe, *_ = open_tracker(file)  # refused with the sizes of cotracker3_tiny
    assert recipe.settings.model == config.settings.model


@pytest.mark.parametrize("kind", ["offline", "online"])
def test_no_model_sees_more_points_than_a_chunk(tmp_path, video, monkeypatch, kind):
    """The memory of a pass grows with the points in it, so 300,000 need as much as one chunk."""
    small = SMALL_COTRACKER3 if kind == "offline" else SMALL_COTRACKER3_ONLINE
    recipe = small.recipe(tmp_path)
    model = recipe.build_model().eval()
    seen: list[int] = []
    name = "estimates" if kind == "offline" else "track_chunk"
    run = getattr(model, name)

    def counted(inputs, queries, *given):
        seen.append(queries.shape[1])
        return run(inputs, queries, *given)

    monkeypatch.setattr(model, name, counted)
    monkeypatch.setattr(cotracker3, "POINTS_PER_CHUNK", 4)
    tracks = Tracker(recipe, model, kind)(video, [[0, x, 9] for x in range(10)], progress=False)
    assert tracks.tracks_xy.shape == (FRAMES, 10, 2)
    support = cotracker3.TRACKING_GRID**2 if kind == "offline" else 0
    assert max(seen) == 4 + support


def test_a_camera_is_recorded(tracker, video, monkeypatch):
    from overt.data.tracking import video_stream

    frames = iter(video.transpose(0, 3, 1, 2))
    monkeypatch.setattr(video_stream, "stream_frames", lambda source: frames)
    tracks = tracker(0, grid=1, frames=3)
    assert tracks.tracks_xy.shape == (3, 1, 2)
    with pytest.raises(ConfigError, match="set frames=N"):
        tracker(0)
    with pytest.raises(ConfigError, match="at least 1"):
        tracker(video, frames=0)
    monkeypatch.setattr(video_stream, "stream_frames", lambda source: iter(()))
    with pytest.raises(DataError, match="no frame arrived"):
        tracker(0, frames=3)


def test_refused_frame_rates(tmp_path):
    pixels = np.zeros((1, 3, 4, 4), np.uint8)
    ones = np.ones((1, 1), np.float32)
    tracks = VideoTracks(np.ones((1, 1, 2), np.float32), ones > 0, ones, ones, ones, pixels, 12.0)
    for fps in (float("nan"), 0, 0.001, 1e9, "fast"):
        with pytest.raises(ConfigError, match=r"expected a number from 0.1 to 1000"):
            tracks.draw(tmp_path / "out.gif", fps=fps)
    assert drawn_fps(np.float32(2), 12.0) == 2
    assert drawn_fps(None, 1e-4) == 0.1  # a slide show as a GIF


def test_progress_counts_points():
    told = []
    with told_to(lambda what, done, total: told.append((done, total))):
        point_counter(8)(0.5)
    assert told == [(4, 8)]
