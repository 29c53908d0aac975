"""The table of docs/reliability.md: one row for each kind of fault, and the run that it is from."""

import os
import platform
import re
import string
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from trials import HERE, Trial

BEGIN, END = "<!-- table: written by make faults -->", "<!-- end of table -->"
COLUMNS = (
    "fault",
    "promised",
    "injected",
    "as promised",
    "longest time until exit",
    "run",
)


class Row(NamedTuple):
    """What came of all injections of one kind, and the run of the campaign that made them."""

    promise: str
    injected: int
    good: int
    seconds: float  # the longest until all processes had ended
    origin: str  # when, which commit, which machine

    def and_trial(self, trial: Trial) -> "Row":
        return self._replace(
            injected=self.injected + 1,
            good=self.good + (not trial.problems),
            seconds=max(self.seconds, trial.seconds),
        )


def origin(seed: int, commit: str | None) -> str:
    """When, of what, where: what a row needs to be repeated."""
    import torch

    cores = len(os.sched_getaffinity(0))
    machine = f"{platform.machine()} with {cores} cores, Python {platform.python_version()}"
    day = time.strftime("%Y-%m-%d")
    return f"{day}, commit {commit or _commit()}, {machine}, torch {torch.__version__}, seed {seed}"


def _commit() -> str:
    """The commit of the tested tree, marked where the tree has other code than the commit."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True)

    try:
        shown = git("rev-parse", "--short", "HEAD")
        code = HERE.parents[1] / "overt"
        changed = git("diff", "--quiet", "HEAD", "--", str(code), str(HERE.parent)).returncode
    except FileNotFoundError:
        return "unknown"
    if shown.returncode != 0:
        return "unknown"
    return shown.stdout.strip() + (" with changes" if changed else "")


def merged(old: dict[str, Row], new: dict[str, Row], counts: dict[str, int]) -> dict[str, Row]:
    """New rows in place of old ones, except where fewer injections would hide more of them.

    A campaign that was stopped early has made some of the injections of a kind. A failure is
    always shown.
    """
    rows = dict(old)
    for name, row in new.items():
        known = old.get(name)
        failed, complete = row.good < row.injected, row.injected >= counts[name]
        if known is None or failed or complete or row.injected >= known.injected:
            rows[name] = row
    return {name: rows[name] for name in counts if name in rows}


def table(rows: dict[str, Row], skipped: dict[str, str]) -> str:
    """The outcomes as Markdown, with a letter for each run of the campaign."""
    letters: dict[str, str] = {}
    for row in rows.values():
        letters.setdefault(row.origin, string.ascii_uppercase[len(letters) % 26])
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for name, row in rows.items():
        lines.append(
            f"| {name} | {row.promise} | {row.injected} | {row.good} | {row.seconds:.1f} s "
            f"| {letters[row.origin]} |"
        )
    injected = sum(row.injected for row in rows.values())
    good = sum(row.good for row in rows.values())
    lines.append(f"| **all** | | **{injected}** | **{good}** | | |")
    lines += ["", "Runs of the campaign:", ""]
    lines += [f"- {letter}: {words}" for words, letter in letters.items()]
    lines += [
        f"\nNot run: {name} ({reason})." for name, reason in skipped.items() if name not in rows
    ]
    return "\n".join(lines)


def read(text: str, kinds: Iterable[str]) -> dict[str, Row]:
    """The rows of a page, except those of kinds that are no longer injected."""
    _, _, rest = text.partition(BEGIN)
    written = rest.partition(END)[0]
    origins = dict(re.findall(r"^- ([A-Z]): (.+)$", written, re.MULTILINE))
    known, rows = set(kinds), {}
    for line in written.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(COLUMNS) and cells[0] in known:
            promise, injected, good, seconds, letter = cells[1:]
            longest = float(seconds.removesuffix(" s"))
            rows[cells[0]] = Row(promise, int(injected), int(good), longest, origins[letter])
    return rows


def replaced(text: str, shown: str) -> str:
    """The page with another table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{shown}\n{END}{after}"


def write(path: Path, shown: str) -> None:
    """Put the table into the page, and its sum into the README beside it."""
    path.write_text(replaced(path.read_text(), shown))
    readme = path.resolve().parents[1] / "README.md"
    (total,) = re.findall(r"\| \*\*all\*\* \| \| \*\*(\d+)\*\* ", shown)
    if readme.is_file():
        counted = re.sub(r"\d+ injected faults", f"{total} injected faults", readme.read_text())
        readme.write_text(counted)
