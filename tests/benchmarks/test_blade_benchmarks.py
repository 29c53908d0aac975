"""BLADE's benchmarks run at tiny sizes and print what the documentation quotes."""

import json
from pathlib import Path

import pytest
from benchmark_scripts import run
from small_recipes import SMALL_BLADE


@pytest.mark.parametrize("stage", ["depthnet", "posenet"])
def test_a_step_is_measured_on_the_cpu(stage: str) -> None:
    small = SMALL_BLADE[stage].sizes("data", "model")
    words = ["--device", "cpu", "--steps", "1", "--rows", "3", "training.batch_size=2"]
    printed = run("step.py", f"blade_{stage}_tiny", *small, *words, "--no-floor")
    assert "s/step" in printed
    assert "samples/s" in printed


def test_the_camera_solve_is_measured_and_finds_something() -> None:
    words = ["--people", "1", "--size", "64", "--iterations", "3", "--rounds", "1"]
    printed = run("camera.py", "--device", "cpu", *words)
    for word in ("ms an iteration", "off at the start: focal length", "off at the end:"):
        assert word in printed


@pytest.mark.long
def test_both_stages_and_the_control_are_trained_and_scored(tmp_path: Path) -> None:
    words = ["--tiny", "--seconds", "0.5", "0.5", "--control", "0.5", "--body", "capsule"]
    words += ["--output", str(tmp_path), "training.device=cpu", "data.synthetic.live=false"]
    printed = run("people.py", *words)
    for part in (
        "depth: before training",
        "depth: by distortion 1 to 1.2 (",
        "best constant",
        "pose: before training",
        "orthographic",
    ):
        assert part in printed
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert set(scores) == {"depth", "pose", "control"}
    assert scores["pose"]["mpjpe_mm"] > 0
