"""The faults: each takes a seed, which decides the moment and the victim, and returns a trial."""

import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from faulty_recipe.recipe import Fault
from trials import (
    DEADLINE,
    SIGNALS,
    STEPS,
    Bench,
    Trial,
    check_ended,
    check_goes_on,
    check_kept,
    check_same_end,
    damage,
    event_kinds,
    good_steps,
    launch,
    newest_folder,
    strike_at,
)

from overt.errors import PREEMPTED_EXIT_CODE
from overt.tools.proof.processes import Group

Injection = Callable[[Bench, int], Trial]
KILLED = -signal.SIGKILL


def settings_of(rng: random.Random, every: int, background: bool | None = None) -> tuple[str, ...]:
    """Saves in the foreground or in the background, as often as asked."""
    background = rng.random() < 0.5 if background is None else background
    return (f"checkpoint.every_steps={every}", f"checkpoint.background={str(background).lower()}")


def in_flight(settings: tuple[str, ...]) -> int:
    """How many of the newest saves may not have reached the disk yet."""
    return int("checkpoint.background=true" in settings)


def draw(name: str, bench: Bench, seed: int) -> tuple[random.Random, Trial]:
    return random.Random(f"{name}/{seed}"), Trial(name, seed, bench.new_folder())


# --- from outside: signals -----------------------------------------------------------------------


def killed_rank(bench: Bench, seed: int) -> Trial:
    """SIGKILL of any rank at any moment; the others end by themselves, nothing is lost."""
    rng, trial = draw("killed rank", bench, seed)
    size, every, step = rng.choice((1, 2, 3)), rng.choice((1, 3)), rng.randrange(STEPS)
    victim, delay = rng.randrange(size), rng.uniform(0.0, 0.02)
    settings = settings_of(rng, every)
    trial.detail = f"rank {victim} of {size}, {1e3 * delay:.1f} ms into step {step}"

    group, _ = strike_at(
        trial.folder,
        size,
        settings,
        step,
        delay,
        lambda started: started.send(victim, signal.SIGKILL),
    )
    ended = group.wait(DEADLINE)
    check_ended(trial, ended)
    if ended.codes[victim] == KILLED:
        # Where the victim had made its last step, the others may have come to their end as well.
        alone = [code for rank, code in enumerate(ended.codes) if rank != victim]
        trial.check(0 not in alone or STEPS in good_steps(trial.folder / "toy"), f"{ended.codes}")
    check_kept(trial, step, every, in_flight(settings))
    check_goes_on(trial, size, settings, bench.reference(size))
    return trial


def killed_at_start(bench: Bench, seed: int) -> Trial:
    """SIGKILL while a run is being resumed: before, during or after the checkpoint is read."""
    rng, trial = draw("killed while resuming", bench, seed)
    size, settings = rng.choice((1, 2)), settings_of(rng, 1)
    step, delay = rng.randrange(3, STEPS), rng.uniform(0.0, 0.6)
    trial.detail = f"{1e3 * delay:.0f} ms after the second start"

    def kill_all(group: Group) -> None:
        for rank in range(size):
            group.send(rank, signal.SIGKILL)

    group, _ = strike_at(trial.folder, size, settings, step, 0.0, kill_all)
    group.wait(DEADLINE)
    group = launch(trial.folder, size, settings)
    wait_a_while(delay)
    kill_all(group)
    check_ended(trial, group.wait(DEADLINE))
    check_kept(trial, step, 1, in_flight(settings))
    check_goes_on(trial, size, settings, bench.reference(size))
    return trial


def asked_to_stop(name: str) -> Injection:
    """SIGTERM or SIGUSR1 to one rank or to all: saved at one step, exit code 85, nothing redone."""

    def inject(bench: Bench, seed: int) -> Trial:
        rng, trial = draw(name, bench, seed)
        size, step = rng.choice((1, 2, 3)), rng.randrange(STEPS - 4)
        victims = rng.choice(([rng.randrange(size)], list(range(size))))
        settings = settings_of(rng, every=100)  # the only save is the one that was asked for
        delay = rng.uniform(0.0, 0.004)
        trial.detail = f"to {victims} of {size} at step {step}"

        def strike(group: Group) -> None:
            for rank in victims:
                group.send(rank, SIGNALS[name])

        group, _ = strike_at(trial.folder, size, settings, step, delay, strike)
        ended = group.wait(DEADLINE)
        check_ended(trial, ended)
        stopped = [PREEMPTED_EXIT_CODE] * size
        trial.check(ended.codes in (stopped, [0] * size), f"exit codes {ended.codes}")
        saved = good_steps(trial.folder / "toy")
        trial.check(len(saved) == 1 and saved[0] > step, f"saved {saved}, asked at step {step}")
        check_goes_on(trial, size, settings, bench.reference(size))
        return trial

    return inject


def frozen_rank(bench: Bench, seed: int) -> Trial:
    """A rank that stops answering: the others give up after the time set, and say so."""
    rng, trial = draw("frozen rank", bench, seed)
    size, step = 2, rng.randrange(1, STEPS)
    victim, settings = rng.randrange(size), (*settings_of(rng, 1), "training.timeout_minutes=0.05")
    trial.detail = f"rank {victim} of {size} at step {step}"
    group = launch(trial.folder, size, settings, {victim: Fault("frozen", step)})
    # What a launcher does once one has failed: end the rest. The frozen one cannot end by itself.
    ended = group.wait(DEADLINE, grace=0.5)
    trial.seconds = ended.seconds
    trial.check(ended.late == [victim], f"alive at the end: {ended.late}, frozen: {victim}")
    check_kept(trial, step, 1, in_flight(settings))
    check_goes_on(trial, size, settings, bench.reference(size))
    return trial


def wait_a_while(seconds: float) -> None:
    signal.sigtimedwait([], seconds)


# --- storage -------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of its own on `folder`, 1 MB in size; False where one may not mount."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def full_disk(bench: Bench, seed: int) -> Trial:
    """No space left at any step: the save says so, older checkpoints stay, space mends it."""
    rng, trial = draw("full disk", bench, seed)
    size, step, every = rng.choice((1, 2)), rng.randrange(1, STEPS), rng.choice((1, 3))
    settings = settings_of(rng, every)
    trial.folder = trial.folder / "disk"
    with small_disk(trial.folder) as mounted:
        fault = Fault("full disk", step, path=trial.folder)
        if not mounted:  # the next best: files may not grow beyond 100 bytes
            fault = Fault("file size limit", step, amount=100)
        trial.detail = f"{fault.kind} at step {step}"
        log = Path(tempfile.mkdtemp(dir=trial.folder.parent)) / "log"
        (trial.folder / "log").symlink_to(log)  # what the run prints needs space too
        ended = launch(trial.folder, size, settings, {0: fault}).wait(DEADLINE)
        check_ended(trial, ended)
        # Rank 0 writes; the others may have made their last step before it fails.
        trial.check(ended.codes[0] != 0, f"exit codes {ended.codes}")
        trial.check("CheckpointError" in trial.log, "no word about the save that failed")
        check_kept(trial, step, every, in_flight(settings))
        (trial.folder / "filler").unlink(missing_ok=True)
        check_goes_on(trial, size, settings, bench.reference(size), losses=False)
    return trial


def damaged(how: str) -> Injection:
    """Damage the newest checkpoint between two sessions: overt falls back to the previous one."""

    def inject(bench: Bench, seed: int) -> Trial:
        name = f"newest checkpoint: {how}"
        rng, trial = draw(name, bench, seed)
        size, step = rng.choice((1, 2)), rng.randrange(4, STEPS)
        settings = settings_of(rng, 1)
        group, _ = strike_at(
            trial.folder, size, settings, step, 0.0, lambda started: started.send(0, signal.SIGKILL)
        )
        check_ended(trial, group.wait(DEADLINE))
        check_kept(trial, step, 1, in_flight(settings))
        spoilt = newest_folder(trial.folder / "toy")
        trial.detail = damage(spoilt, how, rng)
        kept = good_steps(trial.folder / "toy")
        trial.check(len(kept) >= 1, "no older checkpoint was there")
        check_goes_on(trial, size, settings, bench.reference(size))
        if how != "folder deleted":
            aside = spoilt.with_name(f"{spoilt.name}.broken")
            trial.check(aside.is_dir(), "the spoilt checkpoint was not set aside")
            trial.check("is broken" in trial.log, "no warning about the spoilt checkpoint")
        return trial

    return inject


# --- data ----------------------------------------------------------------------------------------


def failing_data(kind: str, workers: tuple[int, ...], words: str) -> Injection:
    """Reading a sample fails on one process: the run ends with the reason; mended, it goes on."""

    def inject(bench: Bench, seed: int) -> Trial:
        rng, trial = draw(kind, bench, seed)
        size, count = rng.choice((1, 2)), rng.choice(workers)
        victim, number = rng.randrange(size), rng.randrange(2, 9)
        settings = (*settings_of(rng, 1), f"training.num_workers={count}")
        trial.detail = f"rank {victim} of {size}, sample {number} drawn, {count} worker(s)"
        # A worker is killed while it reads, sends or waits; training may end before that.
        delay = rng.choice((0.0, rng.uniform(0.0, 0.03))) if kind == "killed worker" else 0.0
        fault = Fault(kind, step=-1, draw=number, amount=delay)
        ended = launch(trial.folder, size, settings, {victim: fault}).wait(DEADLINE)
        check_ended(trial, ended)
        if not delay or ended.codes != [0] * size:
            trial.check(0 not in ended.codes, f"exit codes {ended.codes}")
            trial.check(words in trial.log, f"the reason is not named: no {words!r} in the log")
        check_goes_on(trial, size, settings, bench.reference(size))
        return trial

    return inject


# --- numbers, logs, clocks -----------------------------------------------------------------------


def not_finite(kind: str) -> Injection:
    """NaN on one rank: every rank skips that step, whichever rank it was, resumed or not."""

    def inject(bench: Bench, seed: int) -> Trial:
        rng, trial = draw(f"{kind} on one rank", bench, seed)
        size, step = rng.choice((1, 2, 3)), rng.randrange(STEPS)
        victim, settings = rng.randrange(size), settings_of(rng, 1)
        trial.detail = f"rank {victim} of {size} at step {step}"
        ended = launch(trial.folder, size, settings, {victim: Fault(kind, step)}).wait(DEADLINE)
        check_ended(trial, ended)
        trial.check(ended.codes == [0] * size, f"exit codes {ended.codes}")
        trial.check("skipped_step" in event_kinds(trial.folder / "toy"), "no event of the skip")
        # The same step skipped because of rank 0: what the weights must not depend on.
        check_same_end(trial, bench.reference(size, fault=Fault(kind, step)))
        return trial

    return inject


def not_finite_stop(bench: Bench, seed: int) -> Trial:
    """With training.nonfinite=stop all ranks stop at one step, saved; mended, the run goes on."""
    rng, trial = draw("NaN on one rank, told to stop", bench, seed)
    size, step = rng.choice((1, 2)), rng.randrange(STEPS - 1)
    victim, settings = rng.randrange(size), settings_of(rng, 1)
    fault = Fault("NaN loss", step)
    stops = (*settings, "training.nonfinite=stop")
    ended = launch(trial.folder, size, stops, {victim: fault}).wait(DEADLINE)
    trial.detail = f"rank {victim} of {size} at step {step}"
    check_ended(trial, ended)
    trial.check(ended.codes == [1] * size, f"exit codes {ended.codes}")
    trial.check("NonFiniteError" in trial.log, "no word about NaN")
    check_kept(trial, step, 1)
    check_goes_on(trial, size, settings, bench.reference(size, fault=fault), losses=False)
    return trial


def lost_tracker(bench: Bench, seed: int) -> Trial:
    """The server of the experiment tracker goes away: one warning, and training ends the same."""
    rng, trial = draw("tracker without its server", bench, seed)
    size, step = rng.choice((1, 2)), rng.randrange(-1, STEPS)
    settings = (*settings_of(rng, 3), "logging.use_wandb=true")
    trial.detail = "before the start" if step < 0 else f"at step {step}"
    faults = {rank: Fault("lost tracker", step) for rank in range(size)}
    ended = launch(trial.folder, size, settings, faults).wait(DEADLINE)
    check_ended(trial, ended)
    trial.check(ended.codes == [0] * size, f"exit codes {ended.codes}")
    trial.check(trial.log.count("logging to Weights & Biases failed") == 1, "not warned of once")
    check_same_end(trial, bench.reference(size))
    return trial


def moved_clock(bench: Bench, seed: int) -> Trial:
    """The clock jumps by up to ten years either way, then the run is killed and resumed."""
    rng, trial = draw("clock that jumps", bench, seed)
    size, step = rng.choice((1, 2)), rng.randrange(STEPS - 1)
    settings = settings_of(rng, 1)
    seconds = rng.choice((-1, 1)) * 10 ** rng.uniform(1, 8.5)
    trial.detail = f"by {seconds:.0f} s at step {step}"
    fault = Fault("clock", step, amount=seconds)
    faults = {rng.randrange(size): fault}
    ended = launch(trial.folder, size, settings, faults).wait(DEADLINE)
    check_ended(trial, ended)
    trial.check(ended.codes == [0] * size, f"exit codes {ended.codes}")
    check_same_end(trial, bench.reference(size))
    check_goes_on(trial, size, settings, bench.reference(size))
    return trial


class Kind(NamedTuple):
    """One kind of fault: how it is injected, what is promised, how often `make faults` does it."""

    inject: Injection
    promise: str
    count: int


SAME = "the same command ends with the bits of the undisturbed run"
SPOILT = f"set aside with a warning, and overt falls back to the previous one; {SAME}"
KINDS: dict[str, Kind] = {
    "SIGKILL of a rank": Kind(killed_rank, f"the other ranks end by themselves; {SAME}", 40),
    "SIGKILL while resuming": Kind(killed_at_start, SAME, 14),
    "SIGTERM": Kind(
        asked_to_stop("SIGTERM"), f"saved at the next step, all ranks exit with 85; {SAME}", 24
    ),
    "SIGUSR1": Kind(
        asked_to_stop("SIGUSR1"), f"saved at the next step, all ranks exit with 85; {SAME}", 24
    ),
    "rank frozen": Kind(frozen_rank, f"the others end after `training.timeout_minutes`; {SAME}", 4),
    "full disk": Kind(
        full_disk, f"an error with the space needed, older checkpoints stay; with space, {SAME}", 14
    ),
    "newest checkpoint truncated": Kind(damaged("truncated"), SPOILT, 10),
    "newest checkpoint with a flipped bit": Kind(damaged("bit flipped"), SPOILT, 12),
    "newest checkpoint without a file": Kind(damaged("file deleted"), SPOILT, 8),
    "newest checkpoint deleted": Kind(
        damaged("folder deleted"), f"overt falls back to the previous one; {SAME}", 8
    ),
    "loader worker killed": Kind(
        failing_data("killed worker", (1, 2), "LoaderError: loader worker"),
        f"an error that names the worker and its signal; {SAME}",
        20,
    ),
    "unreadable sample": Kind(
        failing_data("unreadable sample", (0, 0, 2), "DataError: sample"),
        f"an error that names the sample; once fixed, {SAME}",
        8,
    ),
    "sample that raises": Kind(
        failing_data("sample with a bug", (0, 0, 2), "has another shape"),
        f"an error with the traceback; once fixed, {SAME}",
        8,
    ),
    "NaN gradients on one rank": Kind(
        not_finite("NaN gradient"), "all ranks skip the step, the weights of all agree", 10
    ),
    "NaN loss on one rank": Kind(
        not_finite("NaN loss"), "all ranks skip the step, the weights of all agree", 6
    ),
    "NaN on one rank, `training.nonfinite=stop`": Kind(
        not_finite_stop, "all ranks stop at one step, saved; with `skip` it continues from there", 6
    ),
    "tracker without its server": Kind(
        lost_tracker, "one warning; the bits of the undisturbed run", 8
    ),
    "clock that jumps": Kind(moved_clock, "the bits of the undisturbed run", 8),
}
