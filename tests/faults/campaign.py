"""`make faults`: hundreds of injected faults, and a table of what came of them.

python tests/faults/campaign.py [--jobs N] [--seconds N] [--seed N] [--only KIND] [--count N]
    [--write docs/reliability.md]

With --write, new rows replace those of the page, and the others stay, each with the run of the
campaign that it is from: a campaign may be run in pieces and on several machines. After --seconds
no injection begins; a kind that has come less far than its row of the page keeps that row.
"""

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from claim_injections import CLAIM_KINDS
from cluster_injections import CLUSTER_KINDS
from injections import KINDS, Kind
from outcomes import Row, merged, origin, read, table, write
from trials import Bench, Trial

SERVE = """
import sys
from pathlib import Path
_, folder, *sys.path = sys.argv
from campaign import serve
serve(Path(folder))
"""
GRACE = 40.0  # seconds that injections under way have after --seconds


class Injection(NamedTuple):
    kind: str
    seed: int


class Outcome(NamedTuple):
    injection: Injection
    trial: Trial
    seconds: float  # of the whole injection: run, fault, run again, and the comparison


def injections_of(counts: dict[str, int], seed: int) -> list[Injection]:
    """All injections, so that every kind has come equally far at any time."""
    due = [
        (number / count, kind, number) for kind, count in counts.items() for number in range(count)
    ]
    due.sort(key=lambda one: one[0])
    return [Injection(kind, seed + number) for _, kind, number in due]


# --- in a process of its own ----------------------------------------------------------------------


def inject(bench: Bench, injection: Injection) -> Trial:
    """One injection; what fails in the driver itself has not shown what it should."""
    try:
        trial = all_kinds()[injection.kind].inject(bench, injection.seed)
    except Exception as error:
        trial = Trial(injection.kind, injection.seed, bench.folder)
        trial.check(False, f"the trial itself failed: {error!r}")
    if not trial.problems:
        shutil.rmtree(trial.folder, ignore_errors=True)
    return trial


def serve(folder: Path) -> None:
    """Make the injections that are asked for on standard input, and answer each with a line.

    Not as the main module: all processes of a trial would import that again.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    bench = Bench(folder)
    with suppress(KeyboardInterrupt):
        for line in sys.stdin:
            began = time.monotonic()
            trial = inject(bench, Injection(*json.loads(line)))
            answer = {**vars(trial), "folder": str(trial.folder)}
            print(json.dumps([answer, time.monotonic() - began]), file=answers, flush=True)


# --- the driver -----------------------------------------------------------------------------------


class Worker:
    """A process that makes one injection after the other; it keeps its undisturbed runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def ask(self, injection: Injection) -> tuple[Trial, float] | None:
        """The trial and its seconds; None where the process has ended without an answer."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE, str(self.folder), *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # so that it ends together with all that it has started
            )
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        with suppress(BrokenPipeError):
            print(json.dumps(injection), file=process.stdin, flush=True)
            line = process.stdout.readline()
        if not line:
            self.end()
            self.process = None
            return None
        answer, seconds = json.loads(line)
        return Trial(**{**answer, "folder": Path(answer["folder"])}), seconds

    def end(self) -> None:
        """End the process and its children, in such a way that it may unmount its disks."""
        process = self.process
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10.0)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_all(
    due: list[Injection], jobs: int, seconds: float, folder: Path
) -> Iterator[Outcome | Injection]:
    """Make the injections, `jobs` at a time; those that were not finished in time come bare."""
    end = time.monotonic() + seconds
    waiting: queue.SimpleQueue[Injection] = queue.SimpleQueue()
    done: queue.SimpleQueue[Outcome | Injection] = queue.SimpleQueue()
    for injection in due:
        waiting.put(injection)
    workers = [Worker(folder / f"worker_{index:02d}") for index in range(jobs)]

    def work(worker: Worker) -> None:
        while True:
            try:
                injection = waiting.get_nowait()
            except queue.Empty:
                return
            answer = worker.ask(injection) if time.monotonic() < end else None
            if answer is not None:
                done.put(Outcome(injection, *answer))
            elif time.monotonic() >= end:
                done.put(injection)
            else:
                trial = Trial(injection.kind, injection.seed, worker.folder)
                trial.check(False, "the process that injects has ended without an answer")
                done.put(Outcome(injection, trial, 0.0))

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        for _ in due:
            try:
                yield done.get(timeout=max(end + GRACE - time.monotonic(), 0.0))
            except queue.Empty:  # late: whoever is asked now answers nothing more
                for worker in workers:
                    worker.end()
                yield done.get()
    finally:
        for worker in workers:
            worker.end()


def all_kinds() -> dict[str, Kind]:
    return {**KINDS, **CLAIM_KINDS, **{name: kind for name, (kind, _) in CLUSTER_KINDS.items()}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first injection of each kind")
    parser.add_argument("--only", action="append", help="one kind of fault; repeatable")
    parser.add_argument("--count", type=int, help="injections of each kind")
    parser.add_argument("--write", type=Path, help="a page whose table is to be brought up to date")
    parser.add_argument("--jobs", type=int, default=1, help="injections at a time")
    parser.add_argument("--seconds", type=float, default=1e6, help="begin none after so long")
    parser.add_argument("--commit", help="of the tree, where there is no git to ask")
    options = parser.parse_args()

    kinds = all_kinds()
    if unknown := sorted(set(options.only or ()) - set(kinds)):
        parser.error(f"--only {unknown[0]}: not a kind of fault; expected one of {list(kinds)}")
    skipped = {name: reason for name, (_, reason) in CLUSTER_KINDS.items() if reason is not None}
    counts = {name: kind.count for name, kind in kinds.items()}  # of the whole campaign
    chosen = [name for name in options.only or kinds if name not in skipped]
    due = injections_of({name: options.count or counts[name] for name in chosen}, options.seed)

    old = read(options.write.read_text(), kinds) if options.write is not None else {}
    where = origin(options.seed, options.commit)
    new: dict[str, Row] = {}
    spent: dict[str, list[float]] = {}
    unfinished: list[Injection] = []
    folder = Path(tempfile.mkdtemp(prefix="overt-faults-"))
    for name, reason in skipped.items():
        print(f"skipped: {name} ({reason}); its row of the page, if there is one, stays")
    print(f"{len(due)} injections, {options.jobs} at a time", flush=True)
    for outcome in run_all(due, options.jobs, options.seconds, folder):
        if isinstance(outcome, Injection):
            unfinished.append(outcome)
            continue
        name, trial = outcome.injection.kind, outcome.trial
        new[name] = new.get(name, Row(kinds[name].promise, 0, 0, 0.0, where)).and_trial(trial)
        spent.setdefault(name, []).append(outcome.seconds)
        for problem in trial.problems:
            print(f"{name}, seed {trial.seed} ({trial.detail}): {problem}; see {trial.folder}")
        finished = sum(row.injected for row in new.values())
        print(f"\r{finished} of {len(due)}", end="", file=sys.stderr, flush=True)
        if options.write is not None:  # as far as it has come
            write(options.write, table(merged(old, new, counts), skipped))
    failed = sum(row.injected - row.good for row in new.values())
    if not failed:
        shutil.rmtree(folder)
    print("\nmean seconds of an injection, with its runs before and after:")
    for name, seconds in sorted(spent.items(), key=lambda item: -sum(item[1])):
        print(f"  {sum(seconds) / len(seconds):6.1f} x {len(seconds):3d}  {name}")
    print(f"\n{table(merged({}, new, counts), skipped)}")
    if unfinished:
        print(
            f"\nstopped after {options.seconds:.0f} s: {len(unfinished)} injections were not made"
        )
    print(f"{failed} of {sum(row.injected for row in new.values())} not as promised")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
