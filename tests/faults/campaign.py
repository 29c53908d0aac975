"""`make faults`: hundreds of faults, one after the other, and a table of what came of them.

python tests/faults/campaign.py [--seed N] [--only KIND [--count N]] [--write docs/reliability.md]

With --only and --write, the rows of these kinds are replaced and the others stay: a campaign may be
run in pieces.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

import torch
from claim_injections import CLAIM_KINDS
from cluster_injections import CLUSTER_KINDS
from injections import KINDS, Kind
from trials import Bench, Trial

PART = 5  # injections that a process makes, with --jobs
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
    """Put the table between its marks, and its sum into the README."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    readme = path.resolve().parents[1] / "README.md"
    (total,) = re.findall(r"\| \*\*all\*\* \| \| \*\*(\d+)\*\* ", text)
    if readme.is_file():
        said = re.sub(r"\d+ injected faults", f"{total} injected faults", readme.read_text())
        readme.write_text(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first injection of each kind")
    parser.add_argument("--only", action="append", help="one kind of fault; repeatable")
    parser.add_argument("--count", type=int, help="injections of each kind")
    parser.add_argument("--write", type=Path, help="a page whose table is to be replaced")
    parser.add_argument("--jobs", type=int, default=1, help="parts of the campaign at a time")
    parser.add_argument("--outcomes", type=Path, help="write them as JSON; for --jobs")
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
    counted = {
        name: kind._replace(count=options.count or kind.count) for name, kind in kinds.items()
    }
    failed = False
    folder = Path(tempfile.mkdtemp(prefix="overt-faults-"))
    if options.jobs > 1:
        results = in_parallel(counted, options.seed, options.jobs, folder)
    else:
        results = one_by_one(counted, options.seed, folder)
    for name, row in results:
        rows[name] = row
        failed = failed or row.good < row.injected
        rows = {known: rows[known] for known in order if known in rows}
        text = f"{facts(options.seed)}\n\n{table(rows, skipped)}"
        if options.write is not None:  # as far as it has come
            write(options.write, text)
        if options.outcomes is not None:
            options.outcomes.write_text(json.dumps(rows))
    if not failed:
        shutil.rmtree(folder)
    print(f"\n{text}")
    return 1 if failed else 0


def one_by_one(kinds: dict[str, Kind], seed: int, folder: Path) -> Iterator[tuple[str, Row]]:
    """Inject everything, one after the other."""
    bench = Bench(folder)
    for name, kind in kinds.items():
        print(f"{name}: {kind.count} injections", flush=True)
        yield name, Row.of(kind, run_kind(bench, name, kind, seed))


def in_parallel(
    kinds: dict[str, Kind], seed: int, jobs: int, folder: Path
) -> Iterator[tuple[str, Row]]:
    """Inject parts of every kind in processes of their own, `jobs` at a time."""

    def run_part(part: tuple[int, str, int, int]) -> tuple[str, Row]:
        index, name, first, count = part
        file = folder / f"part_{index:03d}.json"
        words = ["--only", name, "--seed", str(first), "--count", str(count)]
        done = subprocess.run(
            [sys.executable, __file__, *words, "--outcomes", str(file)],
            capture_output=True,
            text=True,
        )
        if not file.exists():
            print(f"{name}: {done.stderr}", flush=True)
            return name, Row(kinds[name].promise, count, 0, 0.0)
        print("\n".join(done.stdout.splitlines()[: -4 if done.returncode == 0 else None]))
        return name, Row(*json.loads(file.read_text())[name])

    parts = [
        (name, seed + first, min(PART, kind.count - first))
        for name, kind in kinds.items()
        for first in range(0, kind.count, PART)
    ]
    rows: dict[str, Row] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for name, row in pool.map(run_part, [(index, *part) for index, part in enumerate(parts)]):
            known = rows.get(name)
            if known is not None:
                injected, good = known.injected + row.injected, known.good + row.good
                row = Row(row.promise, injected, good, max(known.seconds, row.seconds))
            rows[name] = row
            yield name, row


if __name__ == "__main__":
    sys.exit(main())
