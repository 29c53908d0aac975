"""One trial: a short run, a fault at a seeded moment, the same command again, a verdict."""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path

from faulty_recipe.recipe import NONE, Fault

from overt.config import load
from overt.tools.proof.compare import compare_checkpoints, loss_difference, read_losses
from overt.tools.proof.processes import Ended, Group

HERE = Path(__file__).parent
PACKAGES = [str(HERE.parent / "toy_recipe"), str(HERE / "faulty_recipe")]
STEPS = 12
DEADLINE = 180.0  # seconds in which everything must have ended, on a busy machine too
# Dropout draws from the global generator, the average has its own weights, 12 steps cross epochs.
EVERYTHING = ("model.dropout=0.3", "training.ema_momentum=0.9", f"training.num_steps={STEPS}")


def train(words: list[str], fault: Fault) -> int:
    """Runs in each process: what `overt train` does, with a fault in it."""
    from faulty_recipe import recipe

    from overt.train import main

    recipe.current = fault
    if fault.kind == "killed before the group has formed":
        os.kill(os.getpid(), signal.SIGKILL)
    return main(words)


@dataclass
class Bench:
    """Where trials run: a folder of its own for each, and undisturbed runs to compare with."""

    folder: Path
    count: int = 0
    references: dict[tuple[int, tuple[str, ...]], Path] = field(default_factory=dict)

    def new_folder(self) -> Path:
        self.count += 1
        folder = self.folder / f"trial_{self.count:04d}"
        folder.mkdir(parents=True)
        return folder

    def reference(self, size: int, settings: tuple[str, ...] = (), fault: Fault = NONE) -> Path:
        """The run folder of the undisturbed run of so many processes, trained when first asked."""
        key = (size, (*settings, repr(fault)))
        if key not in self.references:
            folder = self.new_folder()
            ended = launch(folder, size, settings, faults={0: fault}).wait(DEADLINE)
            assert ended.codes == [0] * size, (folder / "log").read_text()
            self.references[key] = folder / "toy"
        return self.references[key]


@dataclass
class Trial:
    """What one injection led to. `problems` is empty where everything was as promised."""

    fault: str
    seed: int
    folder: Path
    detail: str = ""
    seconds: float = 0.0  # from the start of the disturbed run to its end
    problems: list[str] = field(default_factory=list)

    def check(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""


def words_for(folder: Path, settings: tuple[str, ...]) -> list[str]:
    """The words after `overt train`: from a resolved file, since composing takes longest."""
    file = folder / "resolved.yaml"
    file.write_text(resolved())
    packages = [word for package in PACKAGES for word in ("--package", package)]
    return [*packages, "--config", str(file), f"output_dir={folder}", *settings]


@cache
def resolved() -> str:
    return load(["recipe=faulty_toy", *EVERYTHING], packages=PACKAGES).text


def launch(
    folder: Path, size: int, settings: tuple[str, ...], faults: dict[int, Fault] | None = None
) -> Group:
    """Start the processes of a run, each with the fault of its rank."""
    faults = faults or {}
    words = words_for(folder, settings)
    arguments = [(words, faults.get(rank, NONE)) for rank in range(size)]
    return Group(train, arguments, folder / "log", {"OMP_NUM_THREADS": "1"})


def strike_at(
    folder: Path,
    size: int,
    settings: tuple[str, ...],
    step: int,
    delay: float,
    strike: Callable[[Group], None],
) -> tuple[Group, bool]:
    """Start a run; `delay` seconds after its first process began `step`, strike from outside.

    Returns whether the step was seen: a run may end before.
    """
    receiver, sender = Pipe(duplex=False)
    group = launch(folder, size, settings, {0: Fault(steps=sender)})
    sender.close()  # the process's copy is the only one left: its end is seen here
    seen = False
    end = time.monotonic() + DEADLINE
    while not seen and wait_for_any([receiver], timeout=max(end - time.monotonic(), 0)):
        try:
            seen = receiver.recv() >= step
        except EOFError:
            break
    time.sleep(delay)
    strike(group)
    return group, seen


# --- what must hold afterwards -------------------------------------------------------------------


def good_steps(run: Path) -> list[int]:
    """Steps of the checkpoints that pass their check, without touching anything."""
    from overt.checkpoint import storage
    from overt.checkpoint.manifest import verify

    stored, _ = storage.scan(run / "checkpoints")
    return sorted(entry.manifest["step"] for entry in stored if verify(entry.path).good)


def check_ended(trial: Trial, ended: Ended) -> None:
    trial.seconds = ended.seconds
    late = ", ".join(map(str, ended.late))
    trial.check(not ended.late, f"rank {late} was still alive after {DEADLINE:.0f} s")


def check_kept(trial: Trial, step: int, every: int, in_flight: int = 0) -> None:
    """Every checkpoint that was complete when step `step` began can still be used."""
    due = step // every * every - in_flight * every
    newest = max(good_steps(trial.folder / "toy"), default=0)
    trial.check(newest >= due, f"lost: newest good checkpoint is of step {newest}, not {due}")


def check_goes_on(
    trial: Trial, size: int, settings: tuple[str, ...], reference: Path, losses: bool = True
) -> None:
    """The same command again ends well, with the bits of the undisturbed run."""
    ended = launch(trial.folder, size, settings).wait(DEADLINE)
    trial.check(not ended.late, "the resumed run hung")
    trial.check(ended.codes == [0] * size, f"the resumed run ended with {ended.codes}")
    check_same_end(trial, reference, losses)


def check_same_end(trial: Trial, reference: Path, losses: bool = True) -> None:
    run = trial.folder / "toy"
    last = Path("checkpoints") / f"step_{STEPS:08d}"
    if not (run / last).is_dir():
        trial.check(False, "there is no checkpoint of the last step")
        return
    difference = compare_checkpoints(reference / last, run / last).difference
    trial.check(difference is None, f"other weights: {difference}")
    if losses:
        other = loss_difference(read_losses(reference), read_losses(run))
        trial.check(other is None, f"other losses: {other}")
    left = [path.name for path in (run / "checkpoints").glob(".overt-*")]
    trial.check(not left, f"left over: {left}")


def newest_folder(run: Path) -> Path:
    return run / "checkpoints" / f"step_{max(good_steps(run)):08d}"


def damage(folder: Path, how: str, rng: random.Random) -> str:
    """Truncate, flip a bit in, or delete one file of a checkpoint, or delete all of it."""
    if how == "folder deleted":
        shutil.rmtree(folder)
        return folder.name
    file = rng.choice(sorted(path for path in folder.iterdir() if path.stat().st_size))
    data = bytearray(file.read_bytes())
    match how:
        case "truncated":
            kept = rng.randrange(len(data))
            file.write_bytes(data[:kept])
            return f"{file.name} to {kept} of {len(data)} bytes"
        case "bit flipped":
            place = rng.randrange(8 * len(data))
            data[place // 8] ^= 1 << place % 8
            file.write_bytes(data)
            return f"bit {place} of {file.name}"
        case _:
            file.unlink()
            return file.name


def event_kinds(run: Path) -> list[str]:
    lines = (run / "events.jsonl").read_text().splitlines()
    return [json.loads(line)["kind"] for line in lines]


SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGUSR1": signal.SIGUSR1}
