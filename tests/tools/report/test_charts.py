"""overt/tools/report/charts.py: where a curve is shown, and that thinning loses no spike."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    curves = {name: Curve([1], [1.0], [1.0]) for name in names}
    config = {"checkpoint.metric_name": "score"}
    run = Run(Path("run"), "run", config, [], curves, [], [], [], {})
    assert [chart.name for chart in choose_charts([run, run])] == [
        "train/loss", "train/term", "evaluation/score", "evaluation/other",
        "train/samples_per_second", "train/data_wait_share", "train/grad_norm", "w", "mine/mean",
    ]  # fmt: skip


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
