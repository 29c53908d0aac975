"""Numbers, times and runs in a few words; shared by the page and the terminal."""

from __future__ import annotations

import math
import time
from typing import Any

from overt.tools.report.run import Run

BLOCKS = "▁▂▃▄▅▆▇█"


def number(value: float) -> str:
    """Four digits; whole numbers in full."""
    if not math.isfinite(value):
        return {math.inf: "Inf", -math.inf: "-Inf"}.get(value, "NaN")
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return seconds in the two largest units: 42 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if not math.isfinite(seconds):
        return "unknown"
    total_seconds = max(math.ceil(seconds), 0)
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for position, (unit, size) in enumerate(units):
        if total_seconds >= size or unit == "s":
            count, remainder = divmod(total_seconds, size)
            words = [f"{count} {unit}"]
            if position + 1 < len(units) and remainder // units[position + 1][1]:
                words.append(f"{remainder // units[position + 1][1]} {units[position + 1][0]}")
            return " ".join(words)
    raise AssertionError("the last unit takes what is left")


def left(run: Run) -> str:
    """Return the time to the end by the recent speed; a range where that varies."""
    seconds_left = run.time_left
    if not seconds_left.varies:
        return duration(seconds_left.seconds)
    return f"{duration(seconds_left.fastest)} to {duration(seconds_left.slowest)}, speed varies"


def moment(seconds: float) -> str:
    """Return a time of day in the reader's own zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def progress(run: Run) -> str:
    total = run.total_steps
    return f"{run.step:,}" if total is None else f"{run.step:,} / {total:,}"


def best(run: Run) -> str:
    """Return the score of the best checkpoint; else the last score, or the last loss."""
    if run.best is not None:
        return f"{run.best.name} {number(run.best.value)} at {run.best.step:,}"
    if run.score is not None:
        note = "initial" if run.score.step == 0 else "not saved"
        return f"{run.score.name} {number(run.score.value)} at {run.score.step:,} ({note})"
    loss = run.curves.get("train/loss")
    return "" if loss is None else f"loss {number(loss.last)}"


def value(item: Any) -> str:
    """Return a setting as YAML writes it, on one line."""
    if item is None:
        return "null"
    if isinstance(item, bool):
        return str(item).lower()
    if isinstance(item, list):
        return f"[{', '.join(value(entry) for entry in item)}]"
    return str(item)


def sparkline(values: list[float], width: int) -> str:
    """Return a curve in one line of text: the mean of each stretch as one of eight heights."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    width = min(width, len(finite))
    means = []
    for column in range(width):
        part = finite[column * len(finite) // width : (column + 1) * len(finite) // width]
        means.append(sum(part) / len(part))
    low, span = min(means), max(means) - min(means)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round((value - low) / span * top) if span else 0] for value in means)
