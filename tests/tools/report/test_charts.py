"""overt/tools/report/charts.py: where a curve is shown, and that thinning loses no spike."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.errors import OvertError
from overt.tools.report.charts import choose_charts, every_nth, section_of, thin
from overt.tools.report.run import Curve, Run

KNOWN = {"train/token_std", "evaluation/context_std", "train/noise_norm"}


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("train/loss", "training"),
        ("train/noise_norm", "training"),  # nothing else speaks of its spread
        ("train/token_std", "collapse"),
        ("train/token_std_min", "collapse"),
        ("train/token_rank", "collapse"),
        ("evaluation/context_norm", "collapse"),
        ("evaluation/context_eff_rank", "collapse"),
        ("evaluation/score", "evaluation"),
        ("train/data_wait_share", "speed"),
        ("train/lr", "optimization"),
        ("gradient_norm/encoder", "optimization"),
        ("system/cpu_share", "system"),
        ("mine/thing", "other"),
        ("thing", "other"),
    ],
)
def test_sections(name: str, section: str) -> None:
    assert section_of(name, KNOWN) == section


def test_what_matters_most_comes_first() -> None:
    names = [
        "train/grad_norm", "train/data_wait_share", "evaluation/other", "evaluation/score",
        "train/epoch", "train/term", "train/loss", "train/samples_per_second", "w/min", "w/mean",
        "w/max", "w/std", "mine/mean",
    ]  # fmt: skip
    curves = {name: Curve([1], [1.0], [float(at)]) for at, name in enumerate(names)}
    config = {"checkpoint.metric_name": "score"}
    run = Run(Path("run"), "run", config, [], curves, [], [], [], {})
    assert [chart.name for chart in choose_charts([run, run])] == [
        "train/loss", "evaluation/score", "train/term", "evaluation/other",
        "train/samples_per_second", "train/data_wait_share", "train/grad_norm", "w", "mine/mean",
    ]  # fmt: skip


def run_with(**curves: list[float]) -> Run:
    by_name = {
        f"train/{name}": Curve(list(range(len(values))), [0.0] * len(values), values)
        for name, values in curves.items()
    }
    return Run(Path("run"), "run", {}, [], by_name, [], [], [], {})


def test_a_copy_of_the_loss_has_no_chart_of_its_own() -> None:
    same = run_with(loss=[1.0, math.nan, 2.0], term=[1.0, math.nan, 2.0], other=[1.0, 1.0, 2.0])
    loss, other = choose_charts([same])
    assert loss.duplicates == ("train/term",)
    assert other.name == "train/other"
    differs = run_with(loss=[1.0, 2.0], term=[1.0, 2.5])
    assert len(choose_charts([same, differs])) == 3


def test_pinned_metrics_come_first() -> None:
    run = run_with(a_norm=[1.0], loss=[1.0, 2.0], grad_norm=[3.0])
    charts = choose_charts([run], pins=["grad_*"])
    assert [(chart.name, chart.section) for chart in charts] == [
        ("train/loss", "pinned"), ("train/grad_norm", "pinned"), ("train/a_norm", "training"),
    ]  # fmt: skip
    with pytest.raises(OvertError, match=r"--pin grad_nrom matches no metric.*grad_norm"):
        choose_charts([run], pins=["grad_nrom"])


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(st.floats(allow_nan=True), min_size=1, max_size=300), st.integers(2, 40))
def test_a_thin_curve_keeps_ends_extremes_and_holes(values: list[float], points: int) -> None:
    curve = Curve(list(range(len(values))), [float(place) for place in range(len(values))], values)
    thinned = thin(curve, points)
    assert len(thinned.values) <= max(points // 2, 1) * 3 + 2
    assert thinned.steps == sorted(set(thinned.steps))
    assert {0, len(values) - 1} <= set(thinned.steps)
    for step, moment, value in zip(thinned.steps, thinned.times, thinned.values, strict=True):
        assert moment == step
        assert value == values[step] or (math.isnan(value) and math.isnan(values[step]))
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        assert min(finite) in thinned.values
        assert max(finite) in thinned.values
    assert any(map(math.isfinite, thinned.values)) == bool(finite)
    holes = [value for value in values if not math.isfinite(value)]
    assert bool(holes) == any(not math.isfinite(value) for value in thinned.values)


def test_parts_of_a_distribution_keep_the_same_steps() -> None:
    curve = Curve(list(range(1000)), [0.0] * 1000, [0.0] * 1000)
    assert every_nth(curve, 100).steps == list(range(0, 1000, 10))
