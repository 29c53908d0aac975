"""Which curves a report shows, where, and with how many points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from overt.errors import ConfigError, nearest
from overt.tools.report.run import Curve, Run, plain

SECTIONS = {
    "pinned": "Main metrics",
    "training": "Training",
    "evaluation": "Evaluation",
    "collapse": "Collapse",
    "speed": "Speed and waiting",
    "optimization": "Optimization",
    "distributions": "Distributions",
    "system": "System",
    "other": "Other",
}
FOLDED = ("distributions", "system", "other")  # closed until a reader opens them
MEANING = {
    "collapse": "How much the features of different inputs differ. Standard deviations and ranks "
    "that fall towards zero mean that all inputs look alike to the model.",
    "speed": "Without evaluation, saving and the first steps. Data wait is the fraction of time "
    "spent waiting for samples.",
    "distributions": "Mean, with a band from minimum to maximum.",
    "optimization": "Gradient norms are those before clipping.",
}
SPEED = (
    "samples_per_second", "seconds_per_step", "data_wait_share", "tflops_per_second",
    "flops_utilization", "memory_gib",
)  # fmt: skip
OPTIMIZATION = ("lr", "grad_norm", "skipped_steps", "loss_scale", "weight_decay")
LEFT_OUT = ("train/epoch",)  # the steps in another unit
LOSS = "train/loss"
SAME = 1e-6  # relative difference of values that count as one
OPTIMIZATION_GROUPS = ("gradient_norm", "weight_norm")
SPREAD = ("min", "mean", "max", "std")
COLLAPSE = ("_std", "_std_min", "_norm", "_rank", "_eff_rank")
POINTS = 1200
DESCRIBED = 20  # runs in the description of a chart


@dataclass(frozen=True)
class Chart:
    """One plot: a metric of all runs, or a distribution with its band."""

    name: str
    section: str
    parts: tuple[str, ...]  # the metrics it is drawn from: one, or least, mean and greatest
    duplicates: tuple[str, ...] = ()  # metrics with the same values, which have no chart


def choose_charts(runs: Sequence[Run], pins: Sequence[str] = ()) -> list[Chart]:
    """Return every metric of any run in its section, in a reader's order.

    The loss, the metric that ranks checkpoints and those that match `pins` come first.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.curves))
    names = [name for name in names if name not in LEFT_OUT]
    copies = [name for name in names if name.startswith("train/") and _is_the_loss(name, runs)]
    names = [name for name in names if name not in copies or matches(name, pins)]
    metric_names = set(names)
    spreads = [
        name.removesuffix("/mean")
        for name in names
        if name.endswith("/mean")
        and all(f"{name.removesuffix('mean')}{part}" in metric_names for part in SPREAD)
    ]
    spread_names = {f"{name}/{part}" for name in spreads for part in SPREAD}
    charts = [
        Chart(name, section_of(name, metric_names), (name,))
        for name in names
        if name not in spread_names
    ]
    for name in spreads:
        parts = (f"{name}/min", f"{name}/mean", f"{name}/max")
        charts.append(Chart(name, "distributions", parts))
    for pin in pins:
        if not any(matches(chart.name, [pin]) for chart in charts):
            names = [chart.name for chart in charts]
            hint = nearest(pin, [name.rpartition("/")[2] for name in names] + names)
            raise ConfigError(f"--pin {pin} matches no metric of these runs{hint}")
    order = list(SECTIONS)
    ranking = [f"evaluation/{run.config.get('checkpoint.metric_name')}" for run in runs]
    main = [LOSS, *ranking]
    first = [*main, *(f"train/{name}" for name in SPEED)]
    ranks = {name: rank for rank, name in reversed(list(enumerate(first)))}
    charts = [
        replace(chart, section="pinned")
        if chart.name in main or matches(chart.name, pins)
        else chart
        for chart in charts
    ]
    charts = [
        replace(chart, duplicates=tuple(copies)) if chart.name == LOSS else chart
        for chart in charts
    ]
    return sorted(
        charts,
        key=lambda chart: (order.index(chart.section), ranks.get(chart.name, len(first))),
    )


def matches(name: str, pins: Sequence[str]) -> bool:
    """Return whether one of the patterns is a metric's name, with or without its group."""
    return any(fnmatchcase(name, pin) or fnmatchcase(name, f"*/{pin}") for pin in pins)


def _is_the_loss(name: str, runs: Sequence[Run]) -> bool:
    """Whether a metric repeats the loss in every run that has it: a loss of a single term."""
    pairs = [(run.curves.get(LOSS), run.curves[name]) for run in runs if name in run.curves]
    return name != LOSS and all(
        loss is not None
        and loss.steps == curve.steps
        and all(
            math.isclose(first, second, rel_tol=SAME) or (first != first and second != second)
            for first, second in zip(loss.values, curve.values, strict=True)
        )
        for loss, curve in pairs
    )


def section_of(name: str, metric_names: set[str]) -> str:
    """Return the section of a metric; related metrics of `metric_names` stay together."""
    group, _, metric = name.partition("/")
    for suffix in COLLAPSE:
        if metric.endswith(suffix) and f"{name.removesuffix(suffix)}_std" in metric_names:
            return "collapse"
    if group == "train":
        if metric in SPEED:
            return "speed"
        return "optimization" if metric in OPTIMIZATION else "training"
    if group in OPTIMIZATION_GROUPS:
        return "optimization"
    return group if group in SECTIONS else "other"


def thin(curve: Curve, points: int = POINTS) -> Curve:
    """Downsample a curve to about `points` points: minimum and maximum of each interval.

    So no spike is lost, as it would be in a mean.
    """
    count = len(curve.values)
    if count <= points:
        return curve
    indices = {0, count - 1}
    stretches = max(points // 2, 1)
    for stretch in range(stretches):
        positions = range(stretch * count // stretches, (stretch + 1) * count // stretches)
        finite = [position for position in positions if math.isfinite(curve.values[position])]
        if finite:
            indices.add(min(finite, key=curve.values.__getitem__))
            indices.add(max(finite, key=curve.values.__getitem__))
        if len(finite) < len(positions):  # a gap stays a gap
            indices.add(
                next(index for index in positions if not math.isfinite(curve.values[index]))
            )
    chosen = sorted(indices)
    return Curve(
        [curve.steps[position] for position in chosen],
        [curve.times[position] for position in chosen],
        [curve.values[position] for position in chosen],
    )


def chart_data(chart: Chart, runs: Sequence[Run]) -> dict[str, Any]:
    """Return what the page's script draws a chart from."""
    series = []
    single = len(chart.parts) == 1
    for index, run in enumerate(runs):
        if not all(part in run.curves for part in chart.parts):
            continue
        # The parts of a distribution must keep the same steps.
        curves = [run.curves[part] for part in chart.parts]
        curves = [thin(curves[0])] if single else [every_nth(curve) for curve in curves]
        series.append(
            {
                "run": index,
                "steps": curves[0].steps,
                "hours": [run.hours[moment] for moment in curves[0].times],
                "values": [[plain(value) for value in curve.values] for curve in curves],
            }
        )
    return {"name": chart.name, "label": axis_label(chart.name), "series": series}


def axis_label(name: str) -> str:
    """Return the label of the vertical axis: the last part of a name without underscores."""
    return name.rpartition("/")[2].replace("_", " ")


def every_nth(curve: Curve, points: int = POINTS) -> Curve:
    """Return at most about `points` points at equal distances."""
    stride = max(len(curve.values) // points, 1)
    return Curve(curve.steps[::stride], curve.times[::stride], curve.values[::stride])


def describe(chart: Chart, runs: Sequence[Run]) -> str:
    """Return a description of a chart, for those who cannot see it; of many runs the first ones."""
    parts = []
    metric = chart.parts[len(chart.parts) // 2]
    shown = [run for run in runs if metric in run.curves]
    for run in shown[:DESCRIBED]:
        curve = run.curves[metric]
        finite = [value for value in curve.values if math.isfinite(value)]
        if not finite:
            parts.append(f"{run.name}: no finite value")
            continue
        text = (
            f"{run.name}: from {curve.values[0]:.4g} at step {curve.steps[0]} to {curve.last:.4g} "
            f"at step {curve.steps[-1]}, minimum {min(finite):.4g}, maximum {max(finite):.4g}"
        )
        holes = len(curve.values) - len(finite)
        parts.append(text + (f", {holes} not finite" if holes else ""))
    if len(shown) > DESCRIBED:
        parts.append(f"and {len(shown) - DESCRIBED} more runs")
    return "; ".join(parts)
