"""`overt runs [DIR]`: list the runs below a folder: status, step, best score, time left.

Everything is read from the run folders; the processes are not contacted.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overt.errors import OvertError
from overt.terminal import STATUS, columns, paint
from overt.tools.report import text
from overt.tools.report.reading import find_runs, open_brief
from overt.tools.report.run import Run

HEAD = ("run", "status", "step", "best", "left", "last sign")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt runs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", nargs="?", default="runs", metavar="DIR", help="default: runs")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args(arguments)
    folder = Path(options.folder)
    runs: list[Run] = []
    unreadable: dict[Path, str] = {}
    for path in find_runs(folder):
        try:
            runs.append(open_brief(path, path.relative_to(folder).as_posix()))
        except (OSError, OvertError, ValueError) as error:  # of one run: the others are listed
            unreadable[path] = getattr(error, "strerror", None) or str(error)
    runs.sort(key=lambda run: run.last_sign, reverse=True)
    if options.json:
        for run in runs:
            print(json.dumps(as_row(run)))
        for path, reason in unreadable.items():
            print(json.dumps({"path": str(path), "status": "unreadable", "error": reason}))
        return 0
    if not runs and not unreadable:
        print(f"no runs below {folder}")
        return 0
    rows = [as_words(run) for run in runs]
    rows += [
        (path.relative_to(folder).as_posix(), "unreadable", reason, "", "", "")
        for path, reason in unreadable.items()
    ]
    head, *lines = as_table([HEAD, *rows]).splitlines()
    print(paint(head, "bold"))
    for line, row in zip(lines, rows, strict=True):
        name, rest = line[: len(row[0])], line[len(row[0]) :]
        print(name + rest.replace(row[1], paint(row[1], STATUS.get(row[1], "red")), 1))
    return 0


def as_words(run: Run) -> tuple[str, ...]:
    """Return a line of the table."""
    status = run.status()
    left = text.left(run) if status == "running" else ""
    name = run.path.resolve().name if run.name == "." else run.name
    sign = text.moment(run.last_sign) if run.sessions else ""
    return name, status, text.progress(run), text.best(run), left, sign


def as_table(rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(columns(rows))


def as_row(run: Run) -> dict[str, Any]:
    """Return the same as values, for scripts."""
    left = run.time_left.seconds
    best = run.best
    return {
        "path": str(run.path),
        "status": run.status(),
        "step": run.step,
        "total_steps": run.total_steps,
        "best": None if best is None else {best.name: best.value, "step": best.step},
        "seconds_left": left if math.isfinite(left) else None,
        "last_sign": run.last_sign,
    }
