"""Several runs side by side: a table to sort, with the best of each score, and what differs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from overt.tools.report import text
from overt.tools.report.markup import Html, breakable, element, join
from overt.tools.report.run import Run
from overt.tools.report.sections import label

MOST_SETTINGS = 8  # columns of settings that differ
MOST_SCORES = 12
IDENTITY = ("exp_name", "output_dir")  # differ between runs, and explain nothing
# Words of a score's name that tell its direction, where no setting does.
LOWER = (
    "loss", "error", "err", "mae", "mse", "rmse", "mpjpe", "pve", "hd95", "chamfer", "epe",
    "distance", "nll", "perplexity", "fid", "mm", "px",
)  # fmt: skip
HIGHER = (
    "acc", "accuracy", "top1", "top5", "aj", "oa", "delta", "jaccard", "dice", "iou", "miou",
    "psnr", "ssim", "auc", "recall", "precision", "f1", "pck", "map", "score", "correct",
)  # fmt: skip


@dataclass(frozen=True)
class Score:
    """The best value of a score over a run, or the last one where its direction is unknown."""

    value: float
    step: int


def direction(name: str, runs: Sequence[Run]) -> str | None:
    """`min` or `max`: which values of a score are good; None if unknown."""
    for run in runs:
        mode = run.config.get("checkpoint.mode")
        if run.config.get("checkpoint.metric_name") == name and mode in ("min", "max"):
            return str(mode)
    words = re.split(r"[^a-z0-9]+", name.lower())
    if any(word in LOWER for word in words):
        return "min"
    return "max" if any(word in HIGHER for word in words) else None


def best_score(run: Run, name: str, mode: str | None) -> Score | None:
    """Return the best value of an evaluation score and its step."""
    curve = run.curves.get(f"evaluation/{name}")
    if curve is None:
        return None
    finite = [
        (value, step)
        for value, step in zip(curve.values, curve.steps, strict=True)
        if math.isfinite(value)
    ]
    if not finite:
        return None
    if mode is None:
        return Score(*finite[-1])
    sign = 1 if mode == "max" else -1
    return Score(*max(finite, key=lambda pair: sign * pair[0]))


def score_names(runs: Sequence[Run]) -> list[str]:
    """Return evaluation scores of all runs, those that rank checkpoints first."""
    ranking = [str(run.config.get("checkpoint.metric_name")) for run in runs]
    names = dict.fromkeys(
        name.removeprefix("evaluation/")
        for run in runs
        for name in run.curves
        if name.startswith("evaluation/")
    )
    return list(dict.fromkeys([*(name for name in ranking if name in names), *names]))


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return keys whose values differ between runs, without those that only name a run."""
    configs = [run.config for run in runs]
    keys = dict.fromkeys(chain.from_iterable(configs))
    return [key for key in keys if key not in IDENTITY and _differs(key, configs)]


def _differs(key: str, configs: Sequence[dict[str, Any]]) -> bool:
    values = [config.get(key) for config in configs]
    # Settings of one section are read once for all runs that share it: mostly the same objects.
    distinct = list({id(value): value for value in values}.values())
    return len(distinct) > 1 and len({text.value(value) for value in distinct}) > 1


@dataclass(frozen=True)
class _Cell:
    shown: str
    order: float | str  # what the column is sorted by
    is_best: bool = False


def runs_table(runs: Sequence[Run], differing: Sequence[str]) -> Html:
    """Return one row for each run: settings that differ, the best of each score, speed and time."""
    settings = differing[:MOST_SETTINGS]
    columns: list[tuple[str, list[_Cell]]] = [
        ("status", [_Cell(status, status) for status in (run.status() for run in runs)]),
        ("step", [_Cell(text.progress(run), run.step) for run in runs]),
    ]
    columns += [(key, [_setting(run.config.get(key)) for run in runs]) for key in settings]
    for name in score_names(runs)[:MOST_SCORES]:
        mode = direction(name, runs)
        title = name if mode is None else f"{name} {'↓' if mode == 'min' else '↑'}"
        columns.append((title, _marked([best_score(run, name, mode) for run in runs], mode)))
    columns.append(("last loss", [_number(_last(run, "loss")) for run in runs]))
    columns.append(("samples/s", [_number(_last(run, "samples_per_second")) for run in runs]))
    columns.append(
        ("time", [_Cell(text.duration(run.seconds_worked), run.seconds_worked) for run in runs])
    )
    names = [_head("run"), *(_head(title) for title, _ in columns)]
    rows = [
        element(
            "tr",
            element("th", label(index, run), scope="row", data_order=run.name),
            *(_cell(cells[index]) for _, cells in columns),
        )
        for index, run in enumerate(runs)
    ]
    body = element(
        "table",
        element("thead", element("tr", *names)),
        element("tbody", *rows),
        class_="numbers sortable",
    )
    note = (
        "Click a heading to sort the table. Scores are the best of a run (↑ higher, ↓ lower is "
        "better; the last value where that is unknown), with their steps; the best of all runs is "
        "marked."
    )
    return join(
        element("p", note, class_="quiet note"),
        element(
            "div", body, class_="scroll", tabindex="0", role="region", aria_label="table of runs"
        ),
    )


def _head(title: str) -> Html:
    button = element("button", breakable(title), type="button", class_="sort")
    return element("th", button, scope="col", aria_sort="none")


def _cell(cell: _Cell) -> Html:
    mark = element("span", " best", class_="visually-hidden") if cell.is_best else Html("")
    return element(
        "td", cell.shown, mark, data_order=cell.order, class_="best" if cell.is_best else None
    )


def _setting(value: Any) -> _Cell:
    shown = text.value(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return _Cell(shown, float(value) if is_number else shown)


def _last(run: Run, name: str) -> float | None:
    curve = run.curves.get(f"train/{name}")
    return None if curve is None else curve.last


def _number(value: float | None) -> _Cell:
    return _Cell("", "") if value is None else _Cell(text.number(value), value)


def _marked(scores: Sequence[Score | None], mode: str | None) -> list[_Cell]:
    values = [score.value for score in scores if score is not None]
    best = None
    if mode is not None and len(set(values)) > 1:  # a baseline is the same in all runs
        best = max(values) if mode == "max" else min(values)
    return [
        _Cell("", "")
        if score is None
        else _Cell(f"{text.number(score.value)} @ {score.step:,}", score.value, score.value == best)
        for score in scores
    ]
