"""The speed benchmarks run at tiny sizes and print what the documentation quotes."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script: str, *words: str) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("processes", ["1", "2"])
def test_overhead_compares_three_loops(processes: str) -> None:
    sizes = ["--inputs", "16", "--hidden", "8", "--batch", "4", "--rounds", "1", "--steps", "2"]
    printed = run("overhead.py", "--processes", processes, *sizes)
    for word in ("bare", "plain", "overt / plain = ", f"{processes} process(es)"):
        assert word in printed


def test_step_measures_a_recipe_on_the_cpu() -> None:
    printed = run("step.py", "cotracker3_tiny", "--device", "cpu", "--steps", "1", "--rows", "3")
    assert "s/step" in printed
    assert "launches and 0 host syncs per step" in printed
