"""`overt watch RUN`: follow a run in the terminal.

Ends with the run, with exit code 0 if it finished and 1 if not. --once prints one snapshot.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from overt.checks import within
from overt.terminal import STATUS, columns, paint
from overt.tools.report import text
from overt.tools.report.reading import RunFollower
from overt.tools.report.run import Run

SHOWN = ("loss", "lr", "grad_norm", "samples_per_second", "data_wait_share", "memory_gib")
CLEAR_BELOW = "\x1b[J"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt watch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="default: 2")
    parser.add_argument("--once", action="store_true", help="show it once")
    options = parser.parse_args(arguments)
    within("--every", options.every, 0, above=True)
    try:
        return follow(options.run, options.every, options.once, sys.stdout)
    except KeyboardInterrupt:  # how one ends watching; the run is not touched
        return 0


def follow(
    path: Path,
    interval: float,
    once: bool,
    stream: TextIO,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Show the run until it ends: redrawn in place on a terminal, lines of news elsewhere."""
    live = stream.isatty()
    lines_drawn = 0  # on the terminal, which the next drawing replaces
    last_line = ""
    with RunFollower(path) as follower:
        while True:
            run = follower.read()
            status = run.status()
            lines = picture(run, status, shutil.get_terminal_size().columns - 1)
            line = brief(run, status)
            if live:
                up = f"\x1b[{lines_drawn}A\r" if lines_drawn else ""
                color = STATUS.get(status, "bold")
                head = lines[0].replace(status, paint(status, color, stream), 1)
                stream.write(up + CLEAR_BELOW + "\n".join([head, *lines[1:]]) + "\n")
                lines_drawn = len(lines)
            elif not last_line:
                stream.write("\n".join(lines) + "\n")
            elif line != last_line:
                stream.write(line + "\n")
            last_line = line
            stream.flush()
            if once or status != "running":
                return 0 if once or status == "finished" else 1
            wait(interval)


def picture(run: Run, status: str, width: int) -> list[str]:
    """Return the run on a few lines: progress, loss curve, metrics, scores, restarts, error."""
    lines = [brief(run, status)]
    total = run.total_steps
    if total:
        room = max(min(width - 8, 60), 10)
        done = min(run.step / total, 1.0)
        filled = round(done * room)
        lines.append(f"[{'=' * filled}{' ' * (room - filled)}] {done:4.0%}")
    loss = run.curves.get("train/loss")
    if loss is not None:
        curve = text.sparkline(loss.values, min(width - 22, 60))
        lines.append(f"loss  {curve}  {text.number(loss.last)}")
    rows = [
        [name, text.number(run.curves[f"train/{name}"].last)]
        for name in SHOWN[1:]
        if f"train/{name}" in run.curves
    ]
    rows += [
        [name.removeprefix("evaluation/"), text.number(curve.last)]
        for name, curve in run.curves.items()
        if name.startswith("evaluation/")
    ]
    if len(run.sessions) > 1:
        rows.append(["restarts", str(len(run.sessions) - 1)])
    skipped = run.curves.get("train/skipped_steps")
    if skipped is not None and skipped.last:
        rows.append(["skipped steps", text.number(skipped.last)])
    if run.sessions and run.sessions[-1].error:
        rows.append(["error", str(run.sessions[-1].error)])
    return [line[:width] for line in [*lines, *columns(rows)]]


def brief(run: Run, status: str) -> str:
    """Return the run on one line."""
    parts = [run.name, status, f"step {text.progress(run)}"]
    best = text.best(run)
    if best:
        parts.append(f"best {best}" if run.best else best)
    if status == "running":
        parts.append(f"left {text.left(run)}")
    return "  ".join(parts)
