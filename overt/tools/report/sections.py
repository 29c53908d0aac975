"""The parts of a report that need no script: overview, timeline, scores, settings, commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import PurePath
from typing import Any

from overt.run.reader import step_of
from overt.tools.report import text
from overt.tools.report.markup import Html, breakable, cells, element, join, table
from overt.tools.report.run import Run

ABSENT = "(none)"  # in place of a setting that a run does not have
MOST_CARDS = 100  # runs; the overview of more is a table
COLORS = 8  # runs are told apart by this many colors, and by dashes beyond
QUOTES = re.compile(r"['\"\\]")
HAPPENED = {
    "start": "started",
    "resume": "resumed",
    "skipped_step": "step skipped",
    "finish": "ended",
}


def swatch(index: int) -> Html:
    return _swatch(index % COLORS)


@lru_cache
def _swatch(color: int) -> Html:
    return element("span", class_=f"swatch run{color}", aria_hidden="true")


def label(index: int, run: Run) -> Html:
    return join(swatch(index), breakable(run.name))


def overview(runs: Sequence[Run]) -> Html:
    """A card for each run, or a line where they are many: how far, how good, what went wrong."""
    if len(runs) > MOST_CARDS:
        rows = [_line_about(index, run) for index, run in enumerate(runs)]
        return table(["run", "status", "step", "best", "last loss", "time", "restarts"], rows)
    return element("div", *(_card(index, run) for index, run in enumerate(runs)), class_="cards")


def _line_about(index: int, run: Run) -> list[str]:
    loss = run.curves.get("train/loss")
    best = "" if run.best is None else f"{text.number(run.best.value)} at {run.best.step:,}"
    return [
        label(index, run),
        run.status(),
        text.progress(run),
        best,
        "" if loss is None else text.number(loss.last),
        text.duration(run.seconds_worked),
        str(max(len(run.sessions) - 1, 0)),
    ]


def _card(index: int, run: Run) -> Html:
    status = run.status()
    facts: list[tuple[str, str]] = [("step", text.progress(run))]
    if run.best is not None:
        words = f"{text.number(run.best.value)} at {run.best.step:,}"
        facts.append((f"best {run.best.name}", words))
    if "train/loss" in run.curves:
        facts.append(("last loss", text.number(run.curves["train/loss"].last)))
    if "train/samples_per_second" in run.curves:
        speed = run.curves["train/samples_per_second"].last
        facts.append(("samples per second", text.number(speed)))
    if "train/data_wait_share" in run.curves:
        facts.append(("data wait", f"{run.curves['train/data_wait_share'].last:.0%}"))
    facts.append(("time", text.duration(run.seconds_worked)))
    if status == "running":
        facts.append(("left", text.left(run)))
    if run.sampled_bytes:
        facts.append(("curves", f"samples of {run.sampled_bytes / 1e6:,.0f} MB"))
    facts.append(("restarts", str(max(len(run.sessions) - 1, 0))))
    skipped = run.curves.get("train/skipped_steps")
    facts.append(("skipped steps", text.number(skipped.last) if skipped else "0"))
    total = run.total_steps
    bar: list[Html] = []
    if total:
        done = min(run.step / total, 1.0)
        words = f"{run.name}: {done:.0%} of {total} steps"
        bar = [element("progress", f"{done:.0%}", value=done, max=1, aria_label=words)]
    recipe = run.config.get("recipe.name")
    return element(
        "article",
        element(
            "header",
            element("h3", label(index, run)),
            element("span", status, class_=f"badge {status}"),
        ),
        element("p", str(recipe) if recipe else str(run.path), class_="quiet"),
        *bar,
        element("dl", *(_fact(name, value) for name, value in facts)),
        class_=f"card edge run{index % COLORS}",
    )


def _fact(name: str, value: str) -> Html:
    return element("div", element("dt", breakable(name)), element("dd", value))


# --- what happened --------------------------------------------------------------------------------


def timeline(runs: Sequence[Run]) -> Html:
    """Sessions of each run as bars on its own clock, restarts and skipped steps marked on them."""
    return element("div", *(_bar(index, run) for index, run in enumerate(runs) if run.sessions))


def _bar(index: int, run: Run) -> Html:
    begin, end = run.sessions[0].begin, max(run.last_sign, run.sessions[0].begin + 1)

    def x_of(moment: float) -> float:
        return round(1000 * (moment - begin) / (end - begin), 2)

    shapes = [element("rect", x=0, y=10, width=1000, height=12, class_="idle")]
    for session in run.sessions:
        left, right = x_of(session.begin), x_of(session.end)
        width = max(right - left, 2)
        shapes.append(element("rect", x=left, y=10, width=width, height=12, class_="session"))
        if session.exit_code not in (0, None) and not session.was_stopped:
            cap = max(left, left + width - 5)
            shapes.append(element("rect", x=cap, y=6, width=5, height=20, class_="failed"))
    restarts = [session.begin for session in run.sessions[1:]]
    skips = [float(event["time"]) for event in run.events if event["kind"] == "skipped_step"]
    for moment in restarts:
        shapes.append(_line(x_of(moment), "restart"))
    for moment in skips:
        shapes.append(_line(x_of(moment), "skip"))
    words = f"{run.name}: {len(run.sessions)} session(s) over {text.duration(end - begin)}"
    words += f", {len(restarts)} restart(s), {len(skips)} skipped step(s)"
    view = element(
        "svg",
        *shapes,
        viewBox="0 0 1000 32",
        preserveAspectRatio="none",
        role="img",
        aria_label=words,
    )
    ends = element(
        "div",
        element("span", text.moment(begin)),
        element("span", text.duration(end - begin)),
        element("span", text.moment(end)),
        class_="ends quiet",
    )
    return element(
        "div", element("h3", label(index, run)), view, ends, class_=f"timeline run{index % COLORS}"
    )


def _line(x: float, kind: str) -> Html:
    return element("line", x1=x, x2=x, y1=4, y2=28, class_=kind)


def happened(runs: Sequence[Run]) -> Html:
    """Starts, restarts, skipped steps, ends and all other events, by time."""
    rows = []
    for index, run in enumerate(runs):
        for event in run.events:
            kind = str(event["kind"])
            if kind in ("image", "video", "saved"):
                continue
            step = event.get("step")
            rows.append(
                (
                    float(event["time"]),
                    [
                        text.moment(float(event["time"])),
                        label(index, run),
                        HAPPENED.get(kind, kind.replace("_", " ")),
                        "" if step is None else str(step),
                        _details(event),
                    ],
                )
            )
    rows.sort(key=lambda row: row[0])
    return table(["time", "run", "what", "step", "details"], [row for _, row in rows], "events")


def _details(event: Mapping[str, Any]) -> str:
    if event["kind"] in ("start", "resume"):
        words = [event.get("host"), event.get("device")]
        return ", ".join(str(word) for word in words if word)
    if event["kind"] == "finish":
        reason = event.get("error") or event.get("stopped")
        return f"exit code {event.get('exit_code')}" + (f": {reason}" if reason else "")
    shown = {key: item for key, item in event.items() if key not in ("time", "kind", "step")}
    return ", ".join(f"{key} {item}" for key, item in shown.items() if item is not None)


# --- scores ---------------------------------------------------------------------------------------


def scores(runs: Sequence[Run]) -> Html | None:
    """Return the last evaluation of each run, and what `overt evaluate` said of its checkpoint."""
    by_run = [_scores(run) for run in runs]
    names = list(dict.fromkeys(name for values in by_run for name in values))
    if not names:
        return None
    rows: list[list[str]] = []
    for name in names:
        numbers = [values.get(name) for values in by_run]
        rows.append(
            [
                breakable(name),
                *("" if number is None else text.number(number) for number in numbers),
            ]
        )
    return table(["score", *(label(index, run) for index, run in enumerate(runs))], rows, "numbers")


def _scores(run: Run) -> dict[str, float]:
    last = {
        name.removeprefix("evaluation/"): curve.last
        for name, curve in run.curves.items()
        if name.startswith("evaluation/")
    }
    return last | {f"{name} (overt evaluate)": value for name, value in run.scores.items()}


# --- settings, environment, commands --------------------------------------------------------------


def settings(runs: Sequence[Run]) -> Html:
    """Return every setting of every run; those that differ are marked, and can be shown alone."""
    configs = [run.config for run in runs]
    rows = []
    differing = 0
    for key in dict.fromkeys(chain.from_iterable(configs)):
        values = [config.get(key, ABSENT) for config in configs]
        differs = values.count(values[0]) < len(values)
        shown = [
            element("code", text.value(value)) for value in (values if differs else values[:1])
        ]
        differing += differs
        words = breakable(key)
        name = (
            join(words, element("span", " differs", class_="visually-hidden")) if differs else words
        )
        rows.append(
            element(
                "tr",
                element("th", name, scope="row"),
                *(cells(shown) if differs else [element("td", *shown, colspan=len(runs))]),
                class_="differs" if differs else None,
            )
        )
    head = [element("th", "key", scope="col")]
    head += [element("th", label(index, run), scope="col") for index, run in enumerate(runs)]
    body = element(
        "table",
        element("thead", element("tr", *head)),
        element("tbody", *rows),
        id="settings-table",
        class_="settings only-differences" if differing else "settings",
    )
    tools: list[Html] = []
    if differing:
        box = element("input", type="checkbox", id="only-differences", checked=True)
        count = (
            f" only the {differing} that differ" if differing > 1 else " only the one difference"
        )
        tools.append(element("label", box, count))
    elif len(runs) > 1:
        tools.append(element("span", "all settings are the same", class_="quiet"))
    find = element("input", type="search", id="find-setting", placeholder="optimizer.lr")
    tools.append(element("label", "find a key ", find))
    scroll = element("div", body, class_="scroll", tabindex="0", role="region", aria_label="key")
    return join(element("div", *tools, class_="tools"), scroll)


def environment(runs: Sequence[Run]) -> Html | None:
    """Return where each run's last session ran, and with which versions."""
    environments = [run.sessions[-1].environment if run.sessions else {} for run in runs]
    names = list(dict.fromkeys(name for values in environments for name in values if name != "pid"))
    if not names:
        return None
    rows = [
        [
            name.replace("_", " "),
            *(text.value(values[name]) if name in values else "" for values in environments),
        ]
        for name in names
    ]
    head = ["environment", *(label(index, run) for index, run in enumerate(runs))]
    return table(head, rows, merges=True)


def reproduce(runs: Sequence[Run]) -> Html:
    """The commands that made each run, and the one that makes it again from its settings alone."""
    return element("div", *(_commands_of(index, run, len(runs)) for index, run in enumerate(runs)))


def _commands_of(index: int, run: Run, count: int) -> Html:
    """Return the commands of one run; folded where there are several runs."""
    lines = [spoken(line) for line in run.commands]
    again = f"overt train --config {shlex.quote(str(run.path / 'config.yaml'))}"
    name = run.path.name if run.path.name not in ("", "..") else run.path.resolve().name
    again += f" exp_name={shlex.quote(name + '_again')}"
    blocks = [element("p", "as it was started", class_="quiet") if lines else Html("")]
    blocks += [_command(words, started) for started, words in dict.fromkeys(lines)]
    blocks.append(element("p", "from its settings alone", class_="quiet"))
    blocks.append(_command(again))
    if count == 1:
        return join(*blocks)
    return element("details", element("summary", label(index, run)), *blocks)


def _command(words: str, started: str = "") -> Html:
    button = element("button", "copy", type="button", class_="copy", data_copy=words)
    title = f"started {started}" if started else None
    return element(
        "div", element("pre", element("code", words), tabindex="0"), button, class_="command",
        title=title,
    )  # fmt: skip


def spoken(line: str) -> tuple[str, str]:
    """Return a line of command.txt: when, and the command as one would type it."""
    stamp, _, command = line.partition("  ")
    try:
        # Without quotes both give the same result, and split() is a hundred times faster.
        words = shlex.split(command) if QUOTES.search(command) else command.split()
    except ValueError:
        return stamp, command
    if words:
        program = PurePath(words[0])
        if program.parts[-2:] == ("overt", "train.py"):
            words[0:1] = ["overt", "train"]
        elif program.parts[-2:] == ("overt", "__main__.py") or program.name == "overt":
            words[0] = "overt"
        elif program.suffix == ".py":
            words[0:0] = ["python"]
    return stamp, shlex.join(words)


def marks(run: Run) -> list[dict[str, Any]]:
    """Return what the curves show as upright lines: restarts and skipped steps."""
    if not run.sessions:  # without a start they have no time
        return []
    begin = run.sessions[0].begin
    return [
        {
            "kind": "resume" if event["kind"] == "resume" else "skip",
            "step": step_of(event),
            "hours": round((float(event["time"]) - begin) / 3600, 6),
        }
        for event in run.events
        if event["kind"] in ("resume", "skipped_step") and step_of(event) is not None
    ]
