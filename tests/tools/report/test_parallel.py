"""overt/tools/report/parallel.py: axes of numbers and words, and a line for each run."""

from pathlib import Path

import pytest
from sample_runs import Reader

from overt.tools.report.comparison import differing_settings
from overt.tools.report.parallel import make_axis, parallel
from overt.tools.report.run import Curve, Run


def run(index: int, **config: object) -> Run:
    curves = {"evaluation/top1": Curve([1], [0.0], [index / 10])} if index else {}
    return Run(Path(f"run{index}"), f"run{index}", config, [], curves, [], [], [], {})


def test_axes() -> None:
    numbers = make_axis("lr", [1e-4, 1e-3, 1e-2])
    assert numbers is not None
    assert numbers.heights == pytest.approx([0.0, 0.5, 1.0])  # logarithmic
    linear = make_axis("depth", [4, 8, None])
    assert linear is not None
    assert linear.heights == [0.0, 1.0, None]
    words = make_axis("name", ["lion", "adamw", True])
    assert words is not None
    assert [word for _, word in words.ticks] == ["adamw", "lion", "true"]
    assert make_axis("path", [f"p{number}" for number in range(20)]) is None
    same = make_axis("same", [3, 3])
    assert same is not None
    assert same.heights == [0.5, 0.5]


def test_each_run_is_a_line_broken_where_it_has_no_score() -> None:
    runs = [run(index, lr=10.0**-index, exp_name=f"run{index}") for index in range(4)]
    drawing = parallel(runs, differing_settings(runs))
    assert drawing is not None
    lines = [a["d"] for tag, a in Reader(drawing).tags if tag == "path"]
    classes = [a["class"] for tag, a in Reader(drawing).tags if tag == "path"]
    assert classes[-1] == "run quality4"  # the best is drawn last, over the others
    assert len(lines) == 4
    assert "L" not in str(lines[0])
    assert all("L" in str(line) for line in lines[1:])
    assert parallel(runs[:2], differing_settings(runs)) is None
    assert parallel([run(index, exp_name="x") for index in (1, 2, 3)], []) is None
