"""overt/commands/demo.py: trains, scores and draws for real, and says where everything is."""

import json
import subprocess
from pathlib import Path

import pytest

from overt.cli import main
from overt.commands.demo import PHOTOGRAPHS, closing_words


def test_the_demo_runs_to_its_last_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        """In this process, which has imported torch already."""
        return subprocess.CompletedProcess(command, main(command[3:]))

    monkeypatch.setattr("overt.commands.demo.subprocess.run", run)
    folder = tmp_path / "Vorführung 1"
    smaller = ["training.num_steps=1", "data.synthetic.count=3", "data.held_out=1"]
    smaller += ["training.num_workers=0", "evaluation.frames=5"]
    smaller += ["evaluation.points_per_sequence=32"]
    clip = ["--videos", "1", "--frames", "2", "--side", "64", "--points", "4"]
    photographs = ["photographs", str(folder / "photographs"), str(PHOTOGRAPHS)]
    assert main(["data", *photographs, *clip]) == 0  # shorter than the one that it would make
    assert main(["demo", "--folder", str(folder), *smaller]) == 0
    printed = capfd.readouterr().out
    run = folder / "cotracker3_tiny"
    for word in ("delta_avg", "AJ", "OA", "trained", "before", "static", "overt track"):
        assert word in printed
    for path in ("evaluation/tracks.png", "metrics.jsonl", "checkpoints/best/model.safetensors"):
        assert (run / path).is_file(), path
    assert f"report      {run / 'report.html'}" in printed
    page = (run / "report.html").read_text()
    assert "image/gif" in page  # a video of the tracks
    assert "average_jaccard" in page
    scores = json.loads((run / "evaluation" / "scores.json").read_text())["scores"]
    for name in ("average_pts_within_thresh", "average_jaccard", "occlusion_accuracy"):
        assert scores[name] > scores[f"static_{name}"], name


def test_a_command_that_fails_ends_the_demo(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--folder", str(tmp_path), "training.num_stps=1"]) == 2
    assert "did you mean training.num_steps?" in capfd.readouterr().err


def test_trained_stands_beside_static(tmp_path: Path) -> None:
    names = ("average_pts_within_thresh", "average_jaccard", "occlusion_accuracy")
    scores = dict.fromkeys(names, 0.625) | {f"static_{name}": 0.25 for name in names}
    before = dict.fromkeys(names, 0.5)
    text = closing_words(tmp_path / "cotracker3_tiny", before, scores, minutes=4.56)
    assert text.count("62.5%") == text.count("50.0%") == text.count("25.0%") == 3
    assert "4.6 minutes" in text
