"""overt/tools/report/comparison.py: what differs between runs, and which one is best."""

from pathlib import Path
from typing import Any

import pytest
from sample_runs import Reader

from overt.tools.report.comparison import best_score, differing_settings, direction, runs_table
from overt.tools.report.run import Curve, Run


def run(name: str, config: dict[str, Any], **scores: list[float]) -> Run:
    curves = {
        f"evaluation/{score}": Curve([10 * (n + 1) for n in range(len(values))], [0.0], values)
        for score, values in scores.items()
    }
    return Run(Path(name), name, {"exp_name": name, **config}, [], curves, [], [], [], {})


@pytest.mark.parametrize(
    ("name", "mode"),
    [("ranked", "min"), ("knn_top1", "max"), ("val_loss", "min"), ("mpjpe_mm", "min"), ("x", None)],
)
def test_the_direction_of_a_score(name: str, mode: str | None) -> None:
    config = {"checkpoint.metric_name": "ranked", "checkpoint.mode": "min"}
    assert direction(name, [run("a", config)]) == mode


def test_the_best_of_a_run_is_not_its_last() -> None:
    one = run("a", {}, top1=[0.2, 0.9, float("nan"), 0.5])
    assert vars(best_score(one, "top1", "max")) == {"value": 0.9, "step": 20}
    assert vars(best_score(one, "top1", None)) == {"value": 0.5, "step": 40}
    assert best_score(one, "other", "max") is None


def test_only_what_differs_is_a_column_and_only_the_best_is_marked() -> None:
    runs = [
        run("first_run", {"optimizer.lr": 0.1, "seed": 0}, top1=[0.5], static_error=[2.0]),
        run("second_run", {"optimizer.lr": 0.2, "seed": 0}, top1=[0.7], static_error=[2.0]),
    ]
    assert differing_settings(runs) == ["optimizer.lr"]
    reader = Reader(runs_table(runs, ["optimizer.lr"]))
    best = [attributes for tag, attributes in reader.tags if attributes.get("class") == "best"]
    assert [cell["data-order"] for cell in best] == ["0.7"]  # a baseline has no winner
    assert "optimizer.lr" in reader.words
    assert "top1 \u2191" in reader.words
    assert "first_<wbr>run" in runs_table(runs, [])
