import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_scripts import BENCHMARKS, run

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="measures memory in /proc"
)
WORDS = ["--parameters", "20000", "--rounds", "2", "--folder"]


def check_rows(rows: list[str], names: list[str]) -> None:
    assert [row[:12].strip() for row in rows] == names
    numbers = [row[12:].split() for row in rows]
    assert float(numbers[0][1]) == 1.0
    assert all(float(row[0]) >= 0.0 for row in numbers)


@pytest.mark.long
def test_a_tiny_run_prints_its_table_and_leaves_nothing(tmp_path: Path) -> None:
    title, head, *rows = run("checkpoint.py", *WORDS, str(tmp_path)).splitlines()
    assert title.startswith("20,022 parameters with AdamW state, 0.00 GB, on cpu; median of 2")
    assert head.split()[:2] == ["way", "blocked"]
    check_rows(rows, ["torch.save", "save_file", "+ CRC-32", "foreground", "background"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_tiny_sharded_run_compares_with_torch(tmp_path: Path) -> None:
    script = [sys.executable, BENCHMARKS / "checkpoint.py", *WORDS, tmp_path, "--processes", "2"]
    path = os.pathsep.join([str(BENCHMARKS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        script, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    title, _, *rows, load = done.stdout.splitlines()
    assert "on 2 x cpu" in title
    check_rows(rows, ["HF writer", "+ CRC-32", "foreground", "background"])
    assert load.startswith("load: HF reader ")
    assert list(tmp_path.iterdir()) == []
