"""This machine: a training that outlives the terminal, with a log, a status and a stop that saves.

A run's folder holds local.json (which process, of which machine) and local.log.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from overt.errors import PREEMPTED_EXIT_CODE, LaunchError
from overt.files.atomic import is_copy

RECORD, LOG = "local.json", "local.log"
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Started:
    """A process that was started, and what tells it from a later one with the same number."""

    pid: int
    identity: str
    host: str
    command: list[str]
    path: str = ""  # of this record: a run folder may be copied while it trains


def training_command(
    words: Sequence[str], processes: int, notes: Path, max_restarts: int, stop_seconds: int
) -> list[str]:
    """What trains on one machine, and ends with 85 where it was asked to stop and has saved."""
    if processes == 1:
        return [sys.executable, "-m", "overt.train", *words]
    return [
        *(sys.executable, "-m", "overt.tools.launch.agent", str(notes), str(PREEMPTED_EXIT_CODE)),
        *("--standalone", f"--nproc-per-node={processes}", f"--max-restarts={max_restarts}"),
        "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
        f"--shutdown-timeout={stop_seconds}",
        *("-m", "overt.tools.launch.worker", str(notes), *words),
    ]


def start(run_dir: Path, command: list[str]) -> Started:
    """Start a command detached from this terminal; refused while the run's last one runs."""
    last = read(run_dir)
    # One of another host is no reason: a run that has moved, or a container with a new name. If it
    # still trains, its lock refuses this start.
    if last is not None and last.host == platform.node() and is_running(last):
        raise LaunchError(
            f"{run_dir} is being trained by process {last.pid} already; stop it with `overt launch "
            f"local stop {run_dir}`, or choose another exp_name"
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / LOG).open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a closed terminal does not end it
        )
    identity = identify(process.pid)
    if identity is None:
        raise LaunchError(f"the training ended at once; see {run_dir / LOG}")
    record = os.path.realpath(run_dir / RECORD)
    started = Started(process.pid, identity, platform.node(), command, record)
    (run_dir / RECORD).write_text(json.dumps(asdict(started), indent=2) + "\n")
    return started


def read(run_dir: Path) -> Started | None:
    """Return what was last started in a run's folder; not what was started in one it copies."""
    path = run_dir / RECORD
    if not path.is_file():
        return None
    try:
        started = Started(**json.loads(path.read_text()))
        return None if is_copy(path, started.path) else started
    except (ValueError, TypeError) as error:
        raise LaunchError(f"{path} is not readable ({error}); remove it") from None


def is_running(started: Started) -> bool:
    """Return whether that process still runs, and not another one with its PID."""
    if started.host != platform.node():
        raise LaunchError(
            f"process {started.pid} was started on {started.host}; this is {platform.node()}. Ask "
            "there"
        )
    return identify(started.pid) == started.identity


def stop(started: Started, seconds: float) -> bool:
    """Ask a process to save and leave; whether it has left within that many seconds."""
    deadline = time.monotonic() + seconds
    if is_running(started):
        os.kill(started.pid, signal.SIGTERM)
    while is_running(started):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def identify(pid: int) -> str | None:
    """Return the start time of a process, which identifies it; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _identify_by_ps(pid)
    state, *fields = text.rpartition(")")[2].split()  # a name may hold spaces
    return None if state in "ZX" else f"{boot} {fields[18]}"  # field 22 of the line: its start


def _identify_by_ps(pid: int) -> str | None:
    shown = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() or None
