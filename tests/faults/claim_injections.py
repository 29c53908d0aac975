"""Faults against what README promises: poisoned weights, lost checkpoints, two starts, full disks.

And a long fuzz: random overrides, forged checkpoints and run folders, none of which may end in a
traceback.
"""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from faulty_recipe.recipe import Fault, _fill
from fuzzing_claims import fuzz_folders, fuzz_overrides
from injections import (
    Injection,
    Kind,
    damage,
    draw,
    event_kinds,
    in_flight,
    settings_of,
    small_disk,
    wait_a_while,
)
from toy_runs import read_events
from trials import (
    DEADLINE,
    STEPS,
    Bench,
    Trial,
    check_ended,
    check_goes_on,
    check_kept,
    check_same_end,
    good_steps,
    launch,
    strike_at,
    train,
    words_for,
)

from overt.errors import PREEMPTED_EXIT_CODE
from overt.tools.proof.processes import Group


def kill_at(trial: Trial, size: int, settings: tuple[str, ...], step: int) -> None:
    """Start a run and kill its first rank when it begins `step`."""
    group, _ = strike_at(
        trial.folder, size, settings, step, 0.0, lambda started: started.send(0, signal.SIGKILL)
    )
    check_ended(trial, group.wait(DEADLINE))


def nonfinite_update(bench: Bench, seed: int) -> Trial:
    """An update that is not finite although its gradient is: never saved, never the latest."""
    rng, trial = draw("non-finite update", bench, seed)
    size, step, settings = rng.choice((1, 2)), rng.randrange(2, STEPS - 2), settings_of(rng, 1)
    victim = rng.randrange(size)
    trial.detail = f"rank {victim} of {size} at step {step}"
    fault = Fault("non-finite update", step)
    ended = launch(trial.folder, size, settings, {victim: fault}).wait(DEADLINE)
    check_ended(trial, ended)
    trial.check(ended.codes == [1] * size, f"exit codes {ended.codes}")
    trial.check("NonFiniteWeightsError" in trial.log, "no word about the weights")
    trial.check(max(good_steps(trial.folder / "toy")) == step, "poisoned weights were saved")
    check_goes_on(trial, size, settings, bench.reference(size))
    return trial


def all_damaged(bench: Bench, seed: int) -> Trial:
    """Every checkpoint is damaged, and the run is started twice: refused both times."""
    rng, trial = draw("all checkpoints damaged", bench, seed)
    size, settings = rng.choice((1, 2)), settings_of(rng, 1)
    how = rng.choice(("truncated", "bit flipped", "file deleted", "folder deleted"))
    trial.detail = how
    kill_at(trial, size, settings, rng.randrange(3, STEPS))
    for step in good_steps(trial.folder / "toy"):
        damage(trial.folder / "toy/checkpoints" / f"step_{step:08d}", how, rng)
    for _ in range(2):
        ended = launch(trial.folder, size, settings).wait(DEADLINE)
        check_ended(trial, ended)
        trial.check(ended.codes == [1] * size, f"exit codes {ended.codes}")
        trial.check("CheckpointError" in trial.log, "no word about the checkpoints")
        trial.check(good_steps(trial.folder / "toy") == [], "the run began from scratch")
    return trial


def second_start(bench: Bench, seed: int) -> Trial:
    """The same command while the run trains: refused with its owner; the first one ends well."""
    rng, trial = draw("second start", bench, seed)
    size, settings = rng.choice((1, 2)), settings_of(rng, 1)
    step = rng.randrange(1, STEPS // 2)
    trial.detail = f"at step {step} of the first"
    other: list[Group] = []

    def start_again(first: Group) -> None:
        for rank in range(size):  # holds still until the other one has been refused
            first.send(rank, signal.SIGSTOP)
        arguments = [(words_for(trial.folder, settings), Fault())] * size
        second = Group(train, arguments, trial.folder / "second.log", {"OMP_NUM_THREADS": "1"})
        other.append(second)
        codes = second.wait(DEADLINE).codes
        trial.check(codes == [1] * size, f"the second start ended with {codes}")
        for rank in range(size):
            first.send(rank, signal.SIGCONT)

    group, seen = strike_at(trial.folder, size, settings, step, 0.0, start_again)
    ended = group.wait(DEADLINE)
    check_ended(trial, ended)
    second_log = (trial.folder / "second.log").read_text()
    trial.check("is being trained by another process (pid" in second_log, "its owner is not named")
    trial.check(seen and ended.codes == [0] * size, f"the first start ended with {ended.codes}")
    check_same_end(trial, bench.reference(size))
    return trial


def full_at_start(bench: Bench, seed: int) -> Trial:
    """No space left before a run has written anything: words, and with space it trains."""
    rng, trial = draw("full disk at the start", bench, seed)
    size, settings = rng.choice((1, 2)), settings_of(rng, 3)
    trial.folder = trial.folder / "disk"
    with small_disk(trial.folder) as mounted:
        trial.detail = "tmpfs" if mounted else "read-only folder"
        log = Path(tempfile.mkdtemp(dir=trial.folder.parent)) / "log"
        (trial.folder / "log").symlink_to(log)
        words_for(trial.folder, settings)  # the file that the command names is there already
        if mounted:
            _fill(trial.folder)
        else:
            (trial.folder / "toy").write_text("a file where the run folder should be")
        words = words_for(trial.folder, settings) if not mounted else None
        ended = _launch(trial.folder, size, settings, words).wait(DEADLINE)
        check_ended(trial, ended)
        trial.check(0 not in ended.codes, f"exit codes {ended.codes}")
        trial.check("LaunchError" in trial.log, "no word about the folder")
        trial.check("Traceback" not in trial.log, "a traceback")
        (trial.folder / "filler").unlink(missing_ok=True)
        if not mounted:
            (trial.folder / "toy").unlink()
        check_goes_on(trial, size, settings, bench.reference(size))
    return trial


def _launch(folder: Path, size: int, settings: tuple[str, ...], words: list[str] | None) -> Group:
    """Start without writing the resolved file again: there is no space for it."""
    if words is None:
        resolved = folder / "resolved.yaml"
        kept = resolved.read_bytes()
        words = _words(folder, settings)
        assert resolved.read_bytes() == kept
    return Group(train, [(words, Fault())] * size, folder / "log", {"OMP_NUM_THREADS": "1"})


def _words(folder: Path, settings: tuple[str, ...]) -> list[str]:
    from trials import PACKAGES

    packages = [word for package in PACKAGES for word in ("--package", package)]
    file = folder / "resolved.yaml"
    return [*packages, "--config", str(file), f"output_dir={folder}", *settings]


def full_at_last_save(bench: Bench, seed: int) -> Trial:
    """No space for the last save, in the background: an error, and recorded as one."""
    rng, trial = draw("full disk at the last save", bench, seed)
    size, settings = rng.choice((1, 2)), settings_of(rng, 100, background=True)
    trial.folder = trial.folder / "disk"
    with small_disk(trial.folder):
        fault = Fault("file size limit", STEPS - 1, amount=3000)
        trial.detail = f"{size} process(es)"
        log = Path(tempfile.mkdtemp(dir=trial.folder.parent)) / "log"
        (trial.folder / "log").symlink_to(log)
        ended = launch(trial.folder, size, settings, {0: fault}).wait(DEADLINE)
        check_ended(trial, ended)
        trial.check(ended.codes[0] != 0, f"exit codes {ended.codes}")
        finishes = read_events(trial.folder / "toy", "finish")
        trial.check(all(event["exit_code"] != 0 for event in finishes), "recorded as a success")
        check_goes_on(trial, size, settings, bench.reference(size), losses=False)
    return trial


def stopped_rank(bench: Bench, seed: int) -> Trial:
    """SIGSTOP of a rank from outside: the others give up after the time set; then all resume."""
    rng, trial = draw("SIGSTOP of a rank", bench, seed)
    size, step, settings = 2, rng.randrange(1, STEPS - 2), settings_of(rng, 1)
    victim, settings = rng.randrange(size), (*settings, "training.timeout_minutes=0.05")
    trial.detail = f"rank {victim} of {size} at step {step}"
    group, _ = strike_at(
        trial.folder,
        size,
        settings,
        step,
        0.0,
        lambda started: started.send(victim, signal.SIGSTOP),
    )
    ended = group.wait(DEADLINE, grace=0.5)
    trial.seconds = ended.seconds
    trial.check(ended.late in ([victim], []), f"alive at the end: {ended.late}")
    check_kept(trial, step, 1, in_flight(settings))
    check_goes_on(trial, size, settings, bench.reference(size))
    return trial


STARTS = (
    "killed before the group has formed",
    "killed after the group has formed",
    "killed while data are opened",
    "killed while the model is built",
    "killed in the first step",
)


def killed_starting(bench: Bench, seed: int) -> Trial:
    """SIGKILL of a rank before the first step: the others end soon and say why; then all start."""
    rng, trial = draw("killed at the start", bench, seed)
    size, settings = rng.choice((2, 3)), settings_of(rng, 3)
    kind, victim = STARTS[seed % len(STARTS)], rng.randrange(size)
    # Who never comes is waited for; who came and died is missed at once.
    never_came = kind == STARTS[0]
    patience = ("training.timeout_minutes=0.05",) if never_came else ()
    trial.detail = f"rank {victim} of {size} {kind}"
    ended = launch(trial.folder, size, (*settings, *patience), {victim: Fault(kind)}).wait(DEADLINE)
    check_ended(trial, ended)
    trial.check(ended.codes[victim] == -signal.SIGKILL, f"exit codes {ended.codes}")
    others = [code for rank, code in enumerate(ended.codes) if rank != victim]
    trial.check(others == [1] * (size - 1), f"exit codes {ended.codes}")
    trial.check(trial.log.count("LaunchError: ") == size - 1, "not every rank says why")
    trial.check("Traceback" not in trial.log, "a traceback")
    check_goes_on(trial, size, settings, bench.reference(size))
    return trial


def asked_starting(bench: Bench, seed: int) -> Trial:
    """SIGTERM or SIGUSR1 within the first moments: code 85, no traceback; then it trains."""
    rng, trial = draw("asked to stop at the start", bench, seed)
    size, settings = rng.choice((1, 2)), settings_of(rng, 3)
    number = rng.choice((signal.SIGTERM, signal.SIGUSR1))
    delay = rng.uniform(0.2, 0.8)
    trial.detail = f"{number.name} to all {size} after {1e3 * delay:.0f} ms"
    group = launch(trial.folder, size, settings)
    wait_a_while(delay)
    for rank in range(size):
        group.send(rank, number)
    ended = group.wait(DEADLINE)
    check_ended(trial, ended)
    # Before overt's own code runs, the signal just ends the process; others may miss it then.
    polite = {PREEMPTED_EXIT_CODE, 0}
    early = {-number, 1} if -number in ended.codes else set()
    trial.check(set(ended.codes) <= polite | early, f"exit codes {ended.codes}")
    trial.check("Traceback" not in trial.log, "a traceback")
    check_goes_on(trial, size, settings, bench.reference(size))
    return trial


def nan_in_data(bench: Bench, seed: int) -> Trial:
    """A sample of NaN: its step is skipped every time, killed and resumed or not."""
    rng, trial = draw("NaN in the data", bench, seed)
    size, step = rng.choice((1, 2)), rng.randrange(3, STEPS)
    data = (f"data.nan_sample={rng.randrange(10)}",)
    settings = (*settings_of(rng, 1), *data)
    trial.detail = f"{data[0]}, killed at step {step}"
    kill_at(trial, size, settings, step)
    check_goes_on(trial, size, settings, bench.reference(size, data))
    trial.check("skipped_step" in event_kinds(trial.folder / "toy"), "no event of the skip")
    return trial


def full_on_one_rank(bench: Bench, seed: int) -> Trial:
    """One rank of a sharded run cannot write its shard: all end, older checkpoints stay."""
    rng, trial = draw("disk full on one rank", bench, seed)
    size, step = 2, rng.randrange(2, STEPS - 1)
    sharded = ("training.strategy=fsdp",)
    settings = (*settings_of(rng, 1), *sharded)
    trial.detail = f"rank 1 of {size} at step {step}"
    fault = Fault("file size limit", step, amount=1500)
    ended = launch(trial.folder, size, settings, {1: fault}).wait(DEADLINE)
    check_ended(trial, ended)
    trial.check(0 not in ended.codes, f"exit codes {ended.codes}")
    trial.check("CheckpointError" in trial.log, "no word about the save that failed")
    check_kept(trial, step, 1, in_flight(settings))
    check_goes_on(trial, size, settings, bench.reference(size, sharded), losses=False)
    return trial


# --- fuzz ----------------------------------------------------------------------------------------


def fuzzed(name: str, script: str, count: int) -> Injection:
    """So many random inputs in a process of their own; none may end in anything but words."""

    def inject(bench: Bench, seed: int) -> Trial:
        trial = Trial(name, seed, bench.new_folder(), f"{count} inputs")
        code = f"from fuzzing_claims import {script}; {script}({seed}, {count})"
        folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
        head = f"import sys; sys.path[:0] = {folders}; "
        began = time.monotonic()
        with (trial.folder / "log").open("w") as log:
            done = subprocess.run(
                [sys.executable, "-c", head + code], stdout=log, stderr=log, timeout=1800
            )
        trial.seconds = time.monotonic() - began
        trial.check(done.returncode == 0, trial.log[-500:])
        return trial

    assert {fuzz_overrides.__name__, fuzz_folders.__name__} >= {script}
    return inject


SAME = "the same command ends with the bits of the undisturbed run"
CLAIM_KINDS: dict[str, Kind] = {
    "update that is not finite": Kind(
        nonfinite_update, f"an error, nothing saved, older checkpoints stay; once fixed, {SAME}", 18
    ),
    "all checkpoints damaged, started twice": Kind(
        all_damaged, "refused both times; never from scratch", 19
    ),
    "second start while the first trains": Kind(
        second_start, "refused with host, pid and time; the first ends undisturbed", 20
    ),
    "full disk at the start": Kind(full_at_start, f"an explained error; with space, {SAME}", 16),
    "full disk at the last save": Kind(
        full_at_last_save, f"an error, recorded as one; with space, {SAME}", 18
    ),
    "SIGSTOP of a rank": Kind(
        stopped_rank, f"the others end after `training.timeout_minutes`; {SAME}", 4
    ),
    "SIGKILL of a rank before the first step": Kind(
        killed_starting, f"the others end soon and say why; {SAME}", 30
    ),
    "SIGTERM or SIGUSR1 during the start": Kind(asked_starting, f"exit code 85; {SAME}", 24),
    "NaN in the data": Kind(nan_in_data, f"its steps are skipped; {SAME}", 18),
    "disk full on one rank of a sharded run": Kind(
        full_on_one_rank, f"all ranks end with the reason; with space, {SAME}", 16
    ),
    "100 random overrides": Kind(
        fuzzed("random overrides", "fuzz_overrides", 100),
        "parsed, or refused with an explanation",
        50,
    ),
    "10 forged run folders and checkpoints": Kind(
        fuzzed("forged folders", "fuzz_folders", 10), "read, or refused with an explanation", 50
    ),
}
