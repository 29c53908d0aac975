import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "checkpoint.py"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory in /proc")
def test_a_tiny_run_prints_its_table_and_leaves_nothing(tmp_path, capsys):
    script = runpy.run_path(str(SCRIPT))
    words = ["--parameters", "20000", "--rounds", "2", "--folder", str(tmp_path)]
    assert script["main"](words) == 0
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("20,022 parameters with AdamW state, 0.00 GB, on cpu; median of 2")
    assert head.split()[:2] == ["way", "blocked"]
    assert [row.split()[0] for row in rows] == ["torch.save", "foreground", "background"]
    assert float(rows[0].split()[2]) == 1.0
    assert all(float(row.split()[1]) >= 0.0 for row in rows)
    assert list(tmp_path.iterdir()) == []
