"""`make faults`: hundreds of faults, one after the other, and a table of what came of them.

python tests/faults/campaign.py [--seed N] [--only KIND [--count N]] [--write docs/reliability.md]
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

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


def table(results: dict[str, tuple[Kind, list[Trial]]], skipped: dict[str, str]) -> str:
    """The outcomes as Markdown."""
    lines = [
        "| fault | promised | injected | as promised | longest until all had ended |",
        "|---|---|---|---|---|",
    ]
    for name, (kind, trials) in results.items():
        good = sum(not trial.problems for trial in trials)
        longest = max(trial.seconds for trial in trials)
        lines.append(f"| {name} | {kind.promise} | {len(trials)} | {good} | {longest:.1f} s |")
    everything = [trial for _, trials in results.values() for trial in trials]
    good = sum(not trial.problems for trial in everything)
    lines.append(f"| **all** | | **{len(everything)}** | **{good}** | |")
    lines += [f"\nNot run: {name} ({reason})." for name, reason in skipped.items()]
    return "\n".join(lines)


def facts(seed: int, minutes: float) -> str:
    """When and where: a line above the table."""
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, torch"
    return f"Seed {seed}, {minutes:.0f} minutes on {machine} {torch.__version__}."


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
    if options.only:
        kinds = {name: kinds[name] for name in options.only}
        skipped = {}
    results = {}
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="overt-faults-"))
    bench = Bench(folder)
    for name, kind in kinds.items():
        kind = kind._replace(count=options.count or kind.count)
        print(f"{name}: {kind.count} injections", flush=True)
        results[name] = (kind, run_kind(bench, name, kind, options.seed))
        minutes = (time.monotonic() - began) / 60
        text = f"{facts(options.seed, minutes)}\n\n{table(results, skipped)}"
        if options.write is not None:  # as far as it has come
            write(options.write, text)
    bad = [trial for _, trials in results.values() for trial in trials if trial.problems]
    if not bad:
        shutil.rmtree(folder)
    print(f"\n{text}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
