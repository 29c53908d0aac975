"""Groups of short-lived training processes under a deadline: what proofs and fault tests run.

They are forked from a server that has torch imported once, so that each starts within a moment.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from typing import Any, NamedTuple

PRELOADED = [
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.nn.parallel",
    "overt.engine.trainer",
]


TRACKER_SILENCE = "ignore:resource_tracker:UserWarning"


def start_quiet_tracker() -> None:
    """Start Python's tracker of semaphores so that it does not warn of those of killed processes.

    A process that SIGKILL ends leaves its semaphores behind; the tracker removes them in any case.
    """
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [before, TRACKER_SILENCE]))
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


class Ended(NamedTuple):
    """How a group of processes came to its end."""

    codes: list[int]  # exit code by rank; minus the signal's number where one ended it
    late: list[int]  # ranks that were still alive at the deadline, and were killed then
    seconds: float  # from the start to the end of the last


class Group:
    """Processes that train together: rank r runs `function(*arguments[r])`, its exit code.

    All that they print goes to `log`. This process holds the store through which they meet, as
    torchrun's agent does, so that its port is free for certain.
    """

    def __init__(
        self,
        function: Callable[..., int],
        arguments: Sequence[tuple[Any, ...]],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        start_quiet_tracker()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        size = len(arguments)
        log.touch()  # also where a process ends before it opens it
        # Kept as long as the processes: with it goes their meeting point.
        self._store = TCPStore("127.0.0.1", 0, size + 1, is_master=True, wait_for_workers=False)
        self._processes = []
        self._began = time.monotonic()
        for rank, rank_arguments in enumerate(arguments):
            variables = {**(environment or {}), **_variables(rank, size, self._store.port)}
            process = context.Process(
                target=_enter, args=(function, rank_arguments, log, variables)
            )
            process.start()
            self._processes.append(process)

    def send(self, rank: int, number: signal.Signals) -> bool:
        """Send a signal to one process; False where it has ended already."""
        process = self._processes[rank]
        if process.exitcode is not None or process.pid is None:
            return False
        os.kill(process.pid, number)
        return True

    def wait(self, deadline: float, grace: float | None = None) -> Ended:
        """Until all have ended; those still alive after `deadline` seconds are killed.

        With `grace` the others have that long once one has failed, as under a launcher.
        """
        end = time.monotonic() + deadline
        while alive := [process for process in self._processes if process.exitcode is None]:
            left = end - time.monotonic()
            if left <= 0:
                break
            wait_for_any([process.sentinel for process in alive], timeout=left)
            if grace is not None and any(process.exitcode for process in self._processes):
                end, grace = min(end, time.monotonic() + grace), None
        late = [rank for rank, process in enumerate(self._processes) if process.exitcode is None]
        for process in self._processes:
            process.kill()
            process.join()
        codes = [process.exitcode or 0 for process in self._processes]  # joined: none is None
        return Ended(codes, late, time.monotonic() - self._began)


def _variables(rank: int, size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _enter(
    function: Callable[..., int],
    arguments: tuple[Any, ...],
    log: Path,
    variables: dict[str, str],
) -> None:
    os.environ.update(variables)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    if "OMP_NUM_THREADS" in os.environ:  # torch has read it before this process was made
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    sys.exit(function(*arguments))
