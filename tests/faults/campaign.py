"""`make faults`: hundreds of faults, one after the other, and a table of what came of them.

python tests/faults/campaign.py [--seed N] [--only KIND [--count N]] [--write docs/reliability.md]

With --only and --write, the rows of these kinds are replaced and the others stay: a campaign may be
run in pieces.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

import torch
from claim_injections import CLAIM_KINDS
from cluster_injections import CLUSTER_KINDS
from injections import KINDS, Kind
from trials import Bench, Trial

BEGIN, END = "<!-- table: written by make faults -->", "<!-- end of table -->"


def run_kind(bench: Bench, name: str, kind: Kind, seed: int) -> list[Trial]:
    """All injections of one kind; each problem is shown as it comes."""
    trials = []
    for number in range(kind.count):
        own_seed = seed + number
        try:
            trial = kind.inject(bench, own_seed)
        except Exception as error:  # a driver that fails has not shown what it should
            trial = Trial(name, own_seed, bench.folder)
            trial.check(False, f"the trial itself failed: {error!r}")
        trials.append(trial)
        for problem in trial.problems:
            print(f"  seed {own_seed} ({trial.detail}): {problem}; see {trial.folder}", flush=True)
        if not trial.problems:
            shutil.rmtree(trial.folder, ignore_errors=True)
    return trials


class Row(NamedTuple):
    """A line of the table: what came of all injections of one kind."""

    promise: str
    injected: int
    good: int
    seconds: float  # the longest until all processes had ended

    @classmethod
    def of(cls, kind: Kind, trials: list[Trial]) -> Self:
        good = sum(not trial.problems for trial in trials)
        return cls(kind.promise, len(trials), good, max(trial.seconds for trial in trials))


def table(rows: dict[str, Row], skipped: dict[str, str]) -> str:
    """The outcomes as Markdown."""
    lines = [
        "| fault | promised | injected | as promised | longest until all had ended |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        lines.append(
            f"| {name} | {row.promise} | {row.injected} | {row.good} | {row.seconds:.1f} s |"
        )
    injected, good = (sum(row[field] for row in rows.values()) for field in (1, 2))
    lines.append(f"| **all** | | **{injected}** | **{good}** | |")
    lines += [f"\nNot run: {name} ({reason})." for name, reason in skipped.items()]
    return "\n".join(lines)


def facts(seed: int) -> str:
    """When and where: a line above the table."""
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, torch"
    return f"Seed {seed}, {time.strftime('%Y-%m-%d')}, {machine} {torch.__version__}."


def written_rows(path: Path | None, kinds: Iterable[str]) -> dict[str, Row]:
    """Read the table of a page, less the rows of kinds that are no more."""
    if path is None:
        return {}
    _, _, rest = path.read_text().partition(BEGIN)
    rows = {}
    for line in rest.partition(END)[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0] in kinds:
            seconds = float(cells[4].removesuffix(" s"))
            rows[cells[0]] = Row(cells[1], int(cells[2]), int(cells[3]), seconds)
    return rows


def write(path: Path, text: str) -> None:
    """Put the table between its marks."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first injection of each kind")
    parser.add_argument("--only", action="append", help="one kind of fault; repeatable")
    parser.add_argument("--count", type=int, help="injections of each kind")
    parser.add_argument("--write", type=Path, help="a page whose table is to be replaced")
    options = parser.parse_args()

    kinds, skipped = {**KINDS, **CLAIM_KINDS}, {}
    for name, (kind, reason) in CLUSTER_KINDS.items():
        if reason is None:
            kinds[name] = kind
        else:
            skipped[name] = reason
    rows = written_rows(options.write, kinds) if options.only else {}
    order = list(kinds)
    if options.only:
        kinds = {name: kinds[name] for name in options.only}
    failed = False
    folder = Path(tempfile.mkdtemp(prefix="overt-faults-"))
    bench = Bench(folder)
    for name, kind in kinds.items():
        kind = kind._replace(count=options.count or kind.count)
        print(f"{name}: {kind.count} injections", flush=True)
        rows[name] = Row.of(kind, run_kind(bench, name, kind, options.seed))
        failed = failed or rows[name].good < rows[name].injected
        rows = {known: rows[known] for known in order if known in rows}
        text = f"{facts(options.seed)}\n\n{table(rows, skipped)}"
        if options.write is not None:  # as far as it has come
            write(options.write, text)
    if not failed:
        shutil.rmtree(folder)
    print(f"\n{text}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
