"""The benchmarks of PCDiff run at tiny sizes and print what the documentation quotes."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = [
    "model.width_multiplier=0.5",
    "model.resolution_multiplier=0.5",
    "data.num_points=160",
    "data.num_implant_points=32",
]


def run(script: str, *words: str) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_training_step_is_measured() -> None:
    printed = run("step.py", "pcdiff_tiny", *SMALL, "--device", "cpu", "--steps", "1")
    assert "s/step" in printed
    assert "samples/s" in printed


def test_a_reverse_step_is_measured() -> None:
    printed = run("sampling.py", "pcdiff_tiny", *SMALL, "--device", "cpu", "--steps", "1")
    assert "ms per reverse step" in printed
    assert "DDIM-50" in printed
