"""overt track --online: frames are followed as they arrive, from a file or a camera."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_LBM

from overt.cli import main
from overt.config import build_recipe, load
from overt.data.tracking import video_stream
from overt.data.tracking.moving_shapes import SceneSettings, make_sequence

SMALL = [*SMALL_LBM.sizes("model"), "evaluation.memory_size=3", "training.device=cpu"]
FRAMES = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("online")
    frames, _ = make_sequence(SceneSettings(FRAMES, 30, 42, 4, seed=0, shapes=3, speed=2), 0)
    np.save(folder / "shapes.npy", frames)
    recipe = build_recipe(load(["recipe=lbm_tiny", *SMALL]))
    torch.manual_seed(0)
    torch.save({"model": recipe.build_model().state_dict()}, folder / "lbm.pt")
    return folder


def track(folder: Path, *words: str) -> int:
    weights = ["--checkpoint", str(folder / "lbm.pt"), "--recipe", "lbm_tiny", "--format", "gif"]
    return main(["track", *words, *weights, *SMALL])


def test_a_stream_gives_the_tracks_of_the_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.csv").write_text("t,x,y\n0,5,6\n2,20,11\n0,30,20\n")
    video = str(folder / "shapes.npy")
    asked = ["--queries", str(tmp_path / "q.csv")]
    assert track(folder, video, *asked, "--output", str(tmp_path / "file")) == 0
    assert track(folder, video, *asked, "--online", "--output", str(tmp_path / "live")) == 0
    assert "frames per second" in capsys.readouterr().out
    with np.load(tmp_path / "file/tracks.npz") as one, np.load(tmp_path / "live/tracks.npz") as two:
        for name in one.files:
            np.testing.assert_allclose(two[name], one[name], atol=1e-3, rtol=1e-3, err_msg=name)
    assert (tmp_path / "live" / "video.gif").is_file()


def test_a_number_is_a_camera_and_frames_are_limited(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    frames = np.load(folder / "shapes.npy").transpose(0, 3, 1, 2)
    opened: list[object] = []

    def camera(source: object) -> object:
        opened.append(source)
        return iter(np.concatenate([frames] * 20))

    monkeypatch.setattr(video_stream, "stream_frames", camera)
    words = ["0", "--online", "--frames", "4", "--grid", "2", "--output", str(tmp_path / "out")]
    assert track(folder, *words) == 0
    assert opened == [0]
    assert "4 points in 4 frames" in capsys.readouterr().out


def test_mistakes_are_said(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "late.csv").write_text("9,5,6\n")
    video = str(folder / "shapes.npy")
    assert track(folder, video, "--online", "--queries", str(tmp_path / "late.csv")) != 0
    assert "starts in frame 9, but 5 frames arrived" in capsys.readouterr().err
    asked = ["--online", "--output", str(tmp_path / "out"), "--queries", str(tmp_path / "q.csv")]
    for text, more, message in (
        ("-1,5,6\n0,5,6\n", [], "integer frame index from 0 on"),
        ("0,5,6\n0,90,6\n", [], "1 of 2 queries lie outside the video, first query 1: (0, 90, 6)"),
        ("3,5,6\n", ["--frames", "3"], "frame 0 to 2"),
    ):
        (tmp_path / "q.csv").write_text(text)
        assert track(folder, video, *asked, *more) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    assert track(folder, video, "--frames", "3") != 0
    assert "add --online" in capsys.readouterr().err
    assert main(["track", "0"]) == 2
    assert "0 is the number of a camera, which never ends; add --online" in capsys.readouterr().err
    monkeypatch.setattr(sys, "platform", "plan9")
    assert track(folder, "0", "--online") != 0
    assert "cameras are supported on" in capsys.readouterr().err
