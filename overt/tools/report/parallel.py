"""Parallel coordinates of a sweep: each run a line through its settings to its score.

Drawn here as SVG, so that it prints and needs no script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from overt.tools.report import text
from overt.tools.report.comparison import best_score, direction, score_names
from overt.tools.report.markup import Html, breakable, element, join
from overt.tools.report.run import Run

FEWEST_RUNS = 3
MOST_AXES = 10
MOST_CATEGORIES = 12
WIDTH, TOP, HEIGHT, MARGIN = 170, 44, 240, 90  # of an axis, above it, its length, at the sides
LEVELS = 5  # of color
LOG_RATIO = 50.0  # positive values that span more than this get a logarithmic axis


@dataclass(frozen=True)
class Axis:
    """One axis: where each run crosses it, from 0 (bottom) to 1, and its ticks."""

    name: str
    heights: list[float | None]
    ticks: list[tuple[float, str]]


def parallel(runs: Sequence[Run], differing: Sequence[str]) -> Html | None:
    """Return the drawing for several runs; None where too few differ in a setting."""
    if len(runs) < FEWEST_RUNS:
        return None
    axes = [
        axis
        for key in differing
        if (axis := make_axis(key, [run.config.get(key) for run in runs])) is not None
    ][: MOST_AXES - 1]
    goal = _goal(runs)
    if not axes or goal is None:
        return None
    axes.append(goal)
    quality = _quality(runs, goal)
    by_quality = sorted(range(len(runs)), key=lambda index: quality[index])  # the best on top
    width = 2 * MARGIN + WIDTH * (len(axes) - 1)
    drawing = element(
        "svg",
        *(_line(index, runs[index], axes, quality[index]) for index in by_quality),
        *(_drawn(number, axis) for number, axis in enumerate(axes)),
        viewBox=f"0 0 {width} {TOP + HEIGHT + 20}",
        width=width,
        height=TOP + HEIGHT + 20,
        role="img",
        aria_label=f"Settings and {goal.name} of {len(runs)} runs; the table of runs has the "
        "same numbers",
        class_="parallel",
    )
    note = element(
        "p", "Each line is a run: its settings that differ, and its ", breakable(goal.name),
        " on the right; the better, the stronger its color. Hover over a line to see its run.",
        class_="quiet note",
    )  # fmt: skip
    frame = element(
        "div", drawing, class_="scroll", tabindex="0", role="region",
        aria_label="parallel coordinates",
    )  # fmt: skip
    return join(note, frame)


def _goal(runs: Sequence[Run]) -> Axis | None:
    """Return the axis of the first score, or of the last loss where nothing was evaluated."""
    for name in score_names(runs)[:1]:
        mode = direction(name, runs)
        scores = [best_score(run, name, mode) for run in runs]
        return make_axis(name, [None if score is None else score.value for score in scores])
    losses = [run.curves.get("train/loss") for run in runs]
    return make_axis("last loss", [None if loss is None else loss.last for loss in losses])


def _quality(runs: Sequence[Run], goal: Axis) -> list[int]:
    """Return how good each run is, from 0 to `LEVELS` - 1."""
    names = score_names(runs)
    is_low = direction(names[0] if names else "loss", runs) == "min"
    heights = [0.0 if height is None else (1 - height if is_low else height)
               for height in goal.heights]  # fmt: skip
    return [min(int(height * LEVELS), LEVELS - 1) for height in heights]


def make_axis(name: str, values: Sequence[Any]) -> Axis | None:
    """Return an axis of numbers, or of words; None where there are too many words or no value."""
    numbers = [value for value in values if _is_number(value)]
    if numbers and all(value is None or _is_number(value) for value in values):
        return _numbers(name, values, numbers)
    words = sorted({text.value(value) for value in values})
    if len(words) > MOST_CATEGORIES or len(words) < 2:
        return None
    heights = {word: position / (len(words) - 1) for position, word in enumerate(words)}
    ticks = [(height, word) for word, height in heights.items()]
    return Axis(name, [heights[text.value(value)] for value in values], ticks)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _numbers(name: str, values: Sequence[float | None], numbers: list[float]) -> Axis:
    low, high = min(numbers), max(numbers)
    is_log = low > 0 and high / low > LOG_RATIO

    def height(value: float) -> float:
        if low == high:
            return 0.5
        if is_log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    distinct = sorted(set(numbers))
    shown = distinct if len(distinct) <= 6 else _five(low, high, is_log)
    heights = [height(value) if _is_number(value) else None for value in values]  # type: ignore[arg-type]
    words = text.number if shown is distinct else "{:.3g}".format
    return Axis(name, heights, [(height(value), words(value)) for value in shown])


def _five(low: float, high: float, is_log: bool) -> list[float]:
    steps = [part / 4 for part in range(5)]
    if is_log:
        return [low * (high / low) ** step for step in steps]
    return [low + (high - low) * step for step in steps]


def _x(number: int) -> int:
    return MARGIN + WIDTH * number


def _y(height: float) -> float:
    return round(TOP + HEIGHT * (1 - height), 1)


def _line(index: int, run: Run, axes: Sequence[Axis], quality: int) -> Html:
    """Return the line of a run, broken where it has no value."""
    commands, is_down = [], False
    for number, axis in enumerate(axes):
        height = axis.heights[index]
        if height is not None:
            commands.append(f"{'L' if is_down else 'M'}{_x(number)} {_y(height)}")
        is_down = height is not None
    return element(
        "path",
        element("title", run.name),
        d=" ".join(commands),
        class_=f"run quality{quality}",
    )


def _drawn(number: int, axis: Axis) -> Html:
    x = _x(number)
    short = axis.name.rpartition(".")[2]
    title = short if len(short) <= 22 else f"{short[:21]}…"
    shapes = [
        element("title", axis.name),
        element("line", x1=x, x2=x, y1=TOP, y2=TOP + HEIGHT),
        element("text", title, x=x, y=20, text_anchor="middle", class_="name"),
    ]
    last_y = math.inf
    for height, words in axis.ticks:
        y = _y(height)
        if last_y - y < 13 and last_y != math.inf:
            continue  # would cover the tick below it
        last_y = y
        shown = words if len(words) <= 14 else f"{words[:13]}…"
        shapes.append(element("line", x1=x - 4, x2=x, y1=y, y2=y))
        shapes.append(element("text", shown, x=x - 7, y=y + 4, text_anchor="end"))
    return element("g", *shapes)
