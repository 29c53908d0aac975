"""overt track: any video in, tracks and a video with trails out, and clear words where it fails."""

import csv
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_recipes import SMALL_COTRACKER3, SMALL_LBM
from toy_runs import TOY, train_toy

from overt.checkpoint.manager import CheckpointManager
from overt.cli import main
from overt.commands.track import make_parser
from overt.config import build_recipe, load
from overt.data.tracking.moving_shapes import SceneSettings, make_sequence
from overt.data.tracking.track_files import read_queries
from overt.data.tracking.video import has_pyav, read_video, write_video
from overt.errors import DataError
from overt.recipes.cotracker3.live import LiveTracker
from overt.recipes.lbm.online import OnlineTracker
from overt.viz import click_page

FRAMES, HEIGHT, WIDTH = 7, 35, 51  # sides that no stride divides
SMALL = [
    *SMALL_COTRACKER3.sizes("model"),
    "evaluation.resolution=[32,48]",
    "training.device=cpu",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video in several formats and the weights of two small models."""
    folder = tmp_path_factory.mktemp("track")
    frames, _ = make_sequence(SceneSettings(FRAMES, HEIGHT, WIDTH, 4, seed=0, shapes=3, speed=2), 0)
    np.save(folder / "shapes.npy", frames)
    write_video(folder / "shapes.gif", frames.transpose(0, 3, 1, 2), 10)
    for name in ("cotracker3_tiny", "cotracker3_online_tiny"):
        recipe = build_recipe(load([f"recipe={name}", *SMALL]))
        torch.manual_seed(0)
        torch.save(recipe.build_model().state_dict(), folder / f"{name}.pth")
    return folder


def track(folder: Path, *words: str, recipe: str = "cotracker3_tiny") -> int:
    weights = ["--checkpoint", str(folder / f"{recipe}.pth"), "--recipe", recipe]
    return main(["track", *words, *weights, *SMALL])


def queries_file(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_the_tracker_that_comes_with_overt_follows_what_moves(tmp_path: Path) -> None:
    frames, tracks = make_sequence(SceneSettings(4, 64, 64, 200, seed=99, shapes=8, speed=3.5), 0)
    np.save(tmp_path / "video.npy", frames)
    here = np.flatnonzero(tracks.visible[:, 0])[:40]
    coords = tracks.coords_xy[here]  # (N, T, 2)
    lines = [f"0,{x},{y}" for x, y in coords[:, 0]]
    queries = queries_file(tmp_path / "queries.csv", "\n".join(["t,x,y", *lines]))
    words = [str(tmp_path / "video.npy"), "--queries", queries, "--output", str(tmp_path / "out")]
    assert main(["track", *words, "--format", "gif", "training.device=cpu"]) == 0
    with np.load(tmp_path / "out" / "tracks.npz") as found:
        error = np.linalg.norm(found["tracks_xy"].transpose(1, 0, 2) - coords, axis=-1)
    still = np.linalg.norm(coords[:, :1] - coords, axis=-1)
    seen = tracks.visible[here]
    assert np.median(error[seen]) < 0.35 * np.median(still[seen])


def test_other_trackers_need_their_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--recipe", "cotracker3_online"], ["--online"]):
        assert main(["track", str(tmp_path), *words]) == 2
        assert "only cotracker3_small comes with overt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("shapes.npy", "cotracker3_tiny"),
        ("shapes.gif", "cotracker3_online_tiny"),
        pytest.param("shapes.gif", "cotracker3_tiny", marks=pytest.mark.long),
        pytest.param("shapes.npy", "cotracker3_online_tiny", marks=pytest.mark.long),
    ],
)
def test_a_grid_is_followed_and_drawn(
    name: str, recipe: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--grid", "3", "--output", str(tmp_path / "out"), "--format", "gif"]
    assert track(folder, str(folder / name), *words, recipe=recipe) == 0
    assert "9 points in 7 frames" in capsys.readouterr().out
    with np.load(tmp_path / "out" / "tracks.npz") as found:
        assert found["tracks_xy"].shape == (FRAMES, 9, 2)
        assert found["visibility"].shape == found["confidence"].shape == (FRAMES, 9)
        assert found["visible"].dtype == bool
        # The grid covers the video, and a point is where it was asked for in that frame.
        places = found["queries"][:, 1:]
        assert places.min() >= 0
        assert (places.max(axis=0) > [0.9 * WIDTH, 0.9 * HEIGHT]).all()
        np.testing.assert_allclose(found["tracks_xy"][0], places, atol=1e-4)
        assert (found["visibility"][0] == 1).all()
        stored = found["tracks_xy"]
    with (tmp_path / "out" / "tracks.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == FRAMES * 9
    last = rows[-1]
    assert (last["point"], last["t"]) == ("8", str(FRAMES - 1))
    assert float(last["x"]) == pytest.approx(stored[-1, 8, 0], abs=1e-3)
    drawn = read_video(tmp_path / "out" / "video.gif").frames
    scale = 384 // WIDTH
    assert drawn.shape == (FRAMES, 3, HEIGHT * scale, WIDTH * scale)


FILES = {
    "with_heading.csv": "t,x,y\n0, 10.5, 20\n6,40,5\n\n",
    "bare.csv": "0,10.5,20\n6,40,5",
    "lists.json": "[[0, 10.5, 20], [6, 40, 5]]",
    "objects.json": '[{"t": 0, "x": 10.5, "y": 20}, {"t": 6, "x": 40, "y": 5}]',
}


@pytest.mark.parametrize("name", FILES)
def test_queries_of_a_file_are_followed(name: str, folder: Path, tmp_path: Path) -> None:
    queries = queries_file(tmp_path / name, FILES[name])
    words = ["--queries", queries, "--output", str(tmp_path / "out"), "--format", "webp"]
    assert track(folder, str(folder / "shapes.npy"), *words, "--fps", "4") == 0
    with np.load(tmp_path / "out" / "tracks.npz") as found:
        np.testing.assert_array_equal(found["queries"], [[0, 10.5, 20], [6, 40, 5]])
        np.testing.assert_allclose(found["tracks_xy"][6, 1], [40, 5], atol=1e-4)
    assert read_video(tmp_path / "out" / "video.webp").fps == pytest.approx(4)


def test_online_points_are_followed_back_from_a_late_query(folder: Path, tmp_path: Path) -> None:
    queries = queries_file(tmp_path / "late.json", "[[6, 25, 17]]")
    words = ["--queries", queries, "--output", str(tmp_path), "--format", "gif"]
    recipe = "cotracker3_online_tiny"
    assert track(folder, str(folder / "shapes.npy"), *words, recipe=recipe) == 0
    with np.load(tmp_path / "tracks.npz") as found:
        before = found["tracks_xy"][:6, 0]
    assert np.isfinite(before).all()
    assert len(np.unique(before, axis=0)) > 1  # not the place of the query, repeated


def test_a_checkpoint_folder_knows_its_recipe_and_names_are_given(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(["recipe=cotracker3_tiny", *SMALL])
    model = build_recipe(config).build_model()
    manager = CheckpointManager(tmp_path / "checkpoints")
    manager.save_checkpoint(0, model, torch.optim.SGD(model.parameters()), config_yaml=config.text)
    manager.wait()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "av", None)
    checkpoint = str(tmp_path / "checkpoints" / "latest")
    video = str(folder / "shapes.npy")
    assert main(["track", video, "--checkpoint", checkpoint, "--grid", "2"]) == 0
    written = sorted(path.name for path in (tmp_path / "shapes_tracks").iterdir())
    assert written == ["tracks.csv", "tracks.npz", "video.webp"]


BAD_QUERIES = [
    ("outside.csv", "0,10,10\n0,60,10", "1 of 2 queries lie outside the video"),
    ("late.csv", "7,10,10", "frame 0 to 6"),
    ("early.csv", "-1,10,10\n0,20,20", "query 0 is ['-1', '10', '10']"),
    ("half.csv", "0.5,10,10", "query 0 is ['0.5', '10', '10']"),
    ("words.csv", "frame,column,row\n0,1,2", "query 0 is ['frame', 'column', 'row']"),
    ("nan.csv", "0,nan,2", "expected [t, x, y]"),
    ("pairs.json", "[[1, 2]]", "query 0 is [1, 2]"),
    ("keys.json", '[{"t": 0, "x": 1}]', "query 0 is [0, 1, None]"),
    ("text.json", '["123"]', "query 0 is 123; expected [t, x, y]"),
    ("texts.json", '[[0, 1, 2], ["0", "1", "2"]]', "query 1 is ['0', '1', '2']"),
    ("truth.json", "[[true, 1, 2]]", "query 0 is [True, 1, 2]"),
    ("number.json", "[7]", "query 0 is 7"),
    ("huge.json", "[[0, 1, 1" + 400 * "0" + "]]", "expected [t, x, y]"),
    ("scalar.json", "3", "expected a list of [t, x, y]"),
    ("broken.json", "[[1, 2", "not valid JSON"),
    ("empty.csv", "\n", "it has no queries"),
]


@pytest.mark.parametrize(("name", "text", "expected"), BAD_QUERIES)
def test_bad_queries_are_refused(
    name: str,
    text: str,
    expected: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    queries = queries_file(tmp_path / name, text)
    words = ["--queries", queries, "--output", str(tmp_path / "out")]
    assert track(folder, str(folder / "shapes.npy"), *words) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("DataError: ")
    assert expected in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--grid", "x"], "argument --grid: x is not a whole number of at least 1"),
        (["--grid", "0"], "argument --grid: 0 is not a whole number of at least 1"),
        (["--online", "--frames", "1.5"], "argument --frames: 1.5 is not a whole number"),
        (["--fps", "fast"], "argument --fps: fast is not a number from 0.1 to 1000"),
        (["--fps", "-1"], "argument --fps: -1 is not a number from 0.1 to 1000"),
        (["--fps", "0.001"], "argument --fps: 0.001 is not a number from 0.1 to 1000"),
        (["--fps", "nan"], "argument --fps: nan is not a number from 0.1 to 1000"),
    ],
)
def test_numbers_that_are_none_are_refused_with_what_is_allowed(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_intermixed_args(["video.gif", *words])
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--queries", "q.csv", "--grid", "5"], "--queries names every point; drop --grid"),
        (["--queries", "q.csv", "--query-frame", "0"], "drop --query-frame"),
        (["--queries", "q.csv", "--mask", "m.png", "--dense"], "drop --mask, --dense"),
        (["--online", "--queries", "q.csv", "--mask", "m.png"], "drop --mask"),
        (["--online", "--as-hub"], "--as-hub tracks backward"),
        (["--dense", "--grid", "3"], "--dense follows every pixel; drop --grid 3"),
        (["--page", "--queries", "q.csv"], "the points you click; drop --queries"),
        (["--page", "--grid", "3"], "the points you click; drop --grid"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["track", "video.gif", *words]) == 2
    assert expected in capsys.readouterr().err


def test_tracks_are_kept_if_the_video_cannot_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: Any) -> None:
        raise DataError("no space left")

    monkeypatch.setattr("overt.data.tracking.video.write_video", full_disk)
    words = ["--grid", "1", "--output", str(tmp_path), "--format", "gif"]
    assert track(folder, str(folder / "shapes.npy"), *words) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tracks.csv", "tracks.npz"]


def test_other_mistakes_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video, weights = str(folder / "shapes.npy"), str(folder / "cotracker3_tiny.pth")
    (tmp_path / "broken.gif").write_bytes(b"nonsense")
    cases = [
        ([str(tmp_path / "broken.gif"), "--recipe", "cotracker3_tiny"], 1, "cannot be decoded"),
        ([str(tmp_path / "nowhere"), "--recipe", "cotracker3_tiny"], 1, "no such file"),
        ([video], 2, "holds no configuration; add --recipe NAME"),
        ([video, "--recipe", "cotraker3_tiny"], 2, "did you mean cotracker3_tiny?"),
        ([video, "--recipe", "cotracker3_offline"], 1, "have another shape than in the model"),
        ([video, "--recipe", "cotracker3_tiny", "--queries", "nowhere.csv"], 1, "cannot be read"),
        ([video, "--output", weights], 2, "is a file; name a new"),
    ]
    if not has_pyav():
        cases.append(([video, "--format", "mp4"], 1, "pip install av"))
    for words, code, expected in cases:
        assert main(["track", *words, "--checkpoint", weights]) == code, words
        assert expected in capsys.readouterr().err


def test_a_recipe_that_does_not_track_says_so(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_toy(tmp_path, "training.num_steps=1")
    checkpoint = str(tmp_path / "toy" / "checkpoints" / "latest")
    words = [str(folder / "shapes.npy"), "--checkpoint", checkpoint, "--package", str(TOY)]
    assert main(["track", *words]) == 2
    assert "the recipe toy cannot do this: it has no track_points" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("deep.json", "[" * 100_000),
        ("long.json", "9" * 5000),
        ("long.csv", '"' + "9" * 200_000),
        ("deep.csv", "[" * 200_000),
    ],
)
def test_queries_of_any_content_are_refused(name: str, content: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--queries"):
        read_queries(Path(queries_file(tmp_path / name, content)))


def test_a_sparse_file_of_queries_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "queries.csv"
    path.touch()
    os.truncate(path, 10**11)
    with pytest.raises(DataError, match="sparse"):
        read_queries(path)


def test_cotracker3_follows_frames_as_they_arrive(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = queries_file(tmp_path / "queries.csv", "3,40,5\n0,10,20")
    words = ["--online", "--queries", queries, "--output", str(tmp_path), "--format", "gif"]
    assert track(folder, str(folder / "shapes.npy"), *words, recipe="cotracker3_online_tiny") == 0
    assert capsys.readouterr().out.startswith(str(folder / "shapes.npy"))
    with np.load(tmp_path / "tracks.npz") as stored:
        assert stored["tracks_xy"].shape == (FRAMES, 2, 2)
        np.testing.assert_allclose(stored["tracks_xy"][0], [[40, 5], [10, 20]], atol=12)
        assert not stored["visible"][:3, 0].any()
    words = ["--online", "--query-frame", "2"]
    assert track(folder, str(folder / "shapes.npy"), *words, recipe="cotracker3_online_tiny") == 2


def test_the_frame_rate_counts_what_is_tracked_after_the_last_frame(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds, finish = [0.0], LiveTracker.finish

    def slow(tracker: LiveTracker) -> Any:
        seconds[0] += 2
        return finish(tracker)

    monkeypatch.setattr("time.perf_counter", lambda: seconds[0])
    monkeypatch.setattr(LiveTracker, "finish", slow)
    words = ["--online", "--grid", "1", "--output", str(tmp_path), "--format", "gif"]
    assert track(folder, str(folder / "shapes.npy"), *words, recipe="cotracker3_online_tiny") == 0
    assert f"{FRAMES / 2:.1f} frames per second" in capsys.readouterr().out


def unplug(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a camera show four frames and break off."""
    video = np.load(folder / "shapes.npy")

    def unplugged(_: Any) -> Any:
        yield from video.transpose(0, 3, 1, 2)[:4]
        raise DataError("camera 0: unplugged")

    monkeypatch.setattr("overt.data.tracking.video_stream.stream_frames", unplugged)


def test_a_stream_that_breaks_off_leaves_its_tracks(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unplug(folder, monkeypatch)
    words = ["7", "--online", "--grid", "2", "--output", str(tmp_path), "--format", "gif"]
    assert track(folder, *words, recipe="cotracker3_online_tiny") == 1
    assert "DataError: camera 0: unplugged" in capsys.readouterr().err
    with np.load(tmp_path / "tracks.npz") as stored:
        assert stored["tracks_xy"].shape == (4, 4, 2)


@pytest.mark.parametrize("recipe", ["cotracker3_online_tiny", "lbm_tiny"])
def test_ctrl_c_ends_a_stream_and_keeps_its_tracks(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    recipe: str,
) -> None:
    """It nearly always arrives while a frame is tracked; a query that is still to come is lost."""
    tracker = LiveTracker if recipe.startswith("cotracker3") else OnlineTracker
    advance, calls = tracker.advance, []

    def interrupted(self: Any) -> Any:
        calls.append(self)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return advance(self)

    monkeypatch.setattr(tracker, "advance", interrupted)
    queries = queries_file(tmp_path / "queries.csv", "7,40,5\n2,40,5\n0,10,20")
    words = ["--online", "--queries", queries, "--output", str(tmp_path), "--format", "gif"]
    words = [str(folder / "shapes.npy"), *words]
    if tracker is LiveTracker:
        assert track(folder, *words, recipe=recipe) == 0
    else:
        sizes = [*SMALL_LBM.sizes("model"), "model.backbone_weights=random", "training.device=cpu"]
        model = build_recipe(load([f"recipe={recipe}", *sizes])).build_model()
        torch.save(model.state_dict(), tmp_path / "lbm.pth")
        weights = ["--checkpoint", str(tmp_path / "lbm.pth"), "--recipe", recipe]
        assert main(["track", *words, *weights, *sizes]) == 0
    assert "query 0 starts in frame 7" in capsys.readouterr().out
    with np.load(tmp_path / "tracks.npz") as stored:
        frames = 5 if tracker is LiveTracker else 4  # those that LBM has tracked
        assert stored["tracks_xy"].shape == (frames, 2, 2)
        np.testing.assert_allclose(stored["tracks_xy"][0, 0], [40, 5], atol=12)  # it waits there


def test_a_broken_stream_is_reported_beside_queries_that_it_never_reached(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unplug(folder, monkeypatch)
    for content, kept in (("9,40,5\n0,10,20", 1), ("9,40,5", 0)):
        output = tmp_path / str(kept)
        queries = queries_file(tmp_path / "queries.csv", content)
        words = ["7", "--online", "--queries", queries, "--output", str(output), "--format", "gif"]
        assert track(folder, *words, recipe="cotracker3_online_tiny") == 1
        assert "DataError: camera 0: unplugged" in capsys.readouterr().err
        assert (output / "tracks.npz").exists() == bool(kept)


def test_the_page_follows_what_is_clicked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[dict[str, Any]] = []

    def click_once(server: click_page.ClickServer) -> None:
        answers.append(server.track(b'{"points": [[0, 10, 20]]}'))

    monkeypatch.setattr(click_page.ClickServer, "serve_forever", click_once)
    words = ["--page", "--output", str(tmp_path / "out"), "--format", "gif"]
    assert track(folder, str(folder / "shapes.npy"), *words) == 0
    assert np.shape(answers[0]["tracks"]) == (FRAMES, 1, 2)
    assert answers[0]["files"] == ["tracks.csv", "tracks.npz", "video.gif"]
    assert (tmp_path / "out" / "video.gif").is_file()
    for wrong in (["--page", "--online"], ["--port", "8000"]):
        assert track(folder, str(folder / "shapes.npy"), *wrong) == 2
