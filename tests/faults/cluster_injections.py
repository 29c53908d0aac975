"""Faults that need more than one host: a cut link, and signals on a real Slurm (tests/cluster)."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from injections import SAME, Kind, draw
from slurm_cluster import Cluster, wait_for, why_no_slurm
from trials import DEADLINE, EVERYTHING, HERE, STEPS, Bench, Trial, check_kept, check_same_end
from two_hosts import NAMES, Hosts, why_not

TIMEOUT = 6.0  # seconds that a process waits for another before it gives up
PATIENCE = 150.0  # seconds for Slurm, which is slow to notice things
PACKAGES = [str(HERE.parent / "toy_recipe"), str(HERE.parent / "cluster" / "gated_toy")]


class Gate:
    """Holds both processes of the recipe `gated` at one step."""

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir()
        self.folder = folder
        self.environment = {"OVERT_GATE": str(folder), "OVERT_GATE_STEP": str(step)}

    def is_reached(self) -> bool:
        return len(list(self.folder.glob("waiting_*"))) == len(NAMES)

    def open(self) -> None:
        (self.folder / "open").touch()


def words_for(folder: Path) -> list[str]:
    packages = [word for package in PACKAGES for word in ("--package", package)]
    more = [f"output_dir={folder}", "exp_name=toy", "checkpoint.every_steps=1", *EVERYTHING]
    return [*packages, "recipe=gated", *more]


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    hosts = Hosts(folder)
    try:
        hosts.up()
        yield hosts
    finally:
        hosts.down()


def start_on(
    hosts: Hosts, folder: Path, gate: dict[str, str], log: Path
) -> list[subprocess.Popen[bytes]]:
    """One training process on each host, without a launcher."""
    command = [sys.executable, "-m", "overt.train", *words_for(folder)]
    command.append(f"training.timeout_minutes={TIMEOUT / 60}")
    processes = []
    for rank, name in enumerate(NAMES):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(NAMES)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": f"{hosts.subnet}.1",
            "MASTER_PORT": "29500",  # of a host that nobody else uses
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        with log.open("ab") as output:
            processes.append(
                subprocess.Popen(
                    hosts.on(name, command),
                    env={**os.environ, **variables, **gate},
                    stdout=output,
                    stderr=output,
                )
            )
    return processes


def has_ended(processes: list[subprocess.Popen[bytes]]) -> bool:
    return any(process.poll() is not None for process in processes)


def wait_all(processes: list[subprocess.Popen[bytes]]) -> list[int | None]:
    """Exit codes; None for those that were alive after the deadline, and were killed then."""
    end = time.monotonic() + DEADLINE
    codes: list[int | None] = []
    for process in processes:
        try:
            codes.append(process.wait(max(end - time.monotonic(), 0.1)))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            codes.append(None)
    return codes


def cut_link(bench: Bench, seed: int) -> Trial:
    """The link between two hosts goes silent at some step; it is mended, and the run goes on."""
    rng, trial = draw("cut link", bench, seed)
    step, name = rng.randrange(1, STEPS), rng.choice(NAMES)
    trial.detail = f"of {name} at step {step}"
    log = trial.folder / "log"
    with two_hosts(trial.folder / "net") as hosts:
        gate = Gate(trial.folder / "gate", step)
        processes = start_on(hosts, trial.folder, gate.environment, log)
        wait_for("both at the gate", lambda: gate.is_reached() or has_ended(processes), PATIENCE)
        assert gate.is_reached(), log.read_text()
        hosts.cut(name)
        gate.open()
        began = time.monotonic()
        codes = wait_all(processes)
        trial.seconds = time.monotonic() - began
        trial.check(None not in codes, f"hung for {DEADLINE:.0f} s after the cut")
        trial.check(0 not in codes, f"exit codes {codes}")
        check_kept(trial, step, 1, in_flight=1)
        hosts.heal(name)
        codes = wait_all(start_on(hosts, trial.folder, {}, log))
    trial.check(codes == [0, 0], f"the resumed run ended with {codes}")
    check_same_end(trial, bench.reference(len(NAMES)))
    return trial


@contextmanager
def slurm(folder: Path) -> Iterator[Cluster]:
    """The Slurm that was brought up for all tests, else one of our own."""
    shared = os.environ.get("OVERT_TEST_CLUSTER")
    if shared:
        yield Cluster(Path(shared))
        return
    cluster = Cluster(folder)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


def requeued(bench: Bench, seed: int) -> Trial:
    """SIGUSR1 to a job on two nodes of a real Slurm: saved, requeued by its script, resumed."""
    rng, trial = draw("requeued by Slurm", bench, seed)
    step = rng.randrange(1, STEPS - 3)
    trial.detail = f"at step {step}"
    gate = Gate(trial.folder / "gate", step)
    options = [word for one in gate.environment.items() for word in ("--env", "=".join(one))]
    tasks = rng.choice(("node", "gpu"))
    script = ["--gpus", "0", "--nodes", "2", "--tasks-per", tasks, "--time", "10"]
    with slurm(trial.folder / "slurm") as cluster:
        wait_for("idle nodes", cluster.is_ready, PATIENCE)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "overt", "launch", "slurm", *script),
                *("--signal-seconds", "60", *options, *words_for(trial.folder)),
            ],
            env={**cluster.environment, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        found = re.search(r"^job (\d+)", done.stdout, re.MULTILINE)
        assert found is not None, done.stderr
        job, began = found[1], time.monotonic()
        wait_for("both at the gate", gate.is_reached, PATIENCE)
        cluster.ask("scancel", "--signal=USR1", job)
        gate.open()
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_for("the end", lambda: cluster.job(job).get("JobState") in ended, PATIENCE)
        fields = cluster.job(job)
        trial.seconds = time.monotonic() - began
    state, restarts = fields["JobState"], fields["Restarts"]
    trial.check((state, restarts) == ("COMPLETED", "1"), f"{state} after {restarts} restart(s)")
    check_same_end(trial, bench.reference(len(NAMES)))
    return trial


# Each with the reason why it cannot be done here, if there is one.
CLUSTER_KINDS: dict[str, tuple[Kind, str | None]] = {
    "link between two hosts cut": (
        Kind(cut_link, f"both end within `training.timeout_minutes`; healed, {SAME}", 4),
        why_not(),
    ),
    "SIGUSR1 on Slurm": (
        Kind(requeued, "saved, requeued under its job ID; the bits of the undisturbed run", 4),
        why_no_slurm(),
    ),
}
