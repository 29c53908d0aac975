"""BLADE's benchmarks run at tiny sizes and print what the documentation quotes."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script: str, *words: str) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("recipe", ["blade_depthnet_tiny", "blade_posenet_tiny"])
def test_a_step_is_measured_on_the_cpu(recipe: str) -> None:
    words = ["--device", "cpu", "--steps", "1", "--rows", "3", "training.batch_size=2"]
    printed = run("step.py", recipe, *words)
    assert "s/step" in printed
    assert "samples/s" in printed


def test_the_camera_solve_is_measured_and_finds_something() -> None:
    words = ["--people", "1", "--size", "64", "--iterations", "3", "--rounds", "1"]
    printed = run("camera.py", "--device", "cpu", *words)
    for word in ("ms an iteration", "off at the start: focal length", "off at the end:"):
        assert word in printed
