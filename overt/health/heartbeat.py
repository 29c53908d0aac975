"""Hang detection: a thread of each rank notices, dumps stacks and names the rank that is behind.

Training only counts where it is; everything else happens in the thread, which never waits in a
collective: processes tell each other through the group's store.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from overt.config.schema import TrainingSection
from overt.distributed import World

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

logger = logging.getLogger(__name__)

LONGEST_PAUSE = 15.0  # seconds between two heartbeats


class Beat(NamedTuple):
    """The heartbeat message of a rank."""

    number: int  # sequence number: one that stays the same means that the process is gone
    progress: int  # phases passed; a phase has the same number on every rank
    step: int
    doing: str
    host: str
    process: int


class Heartbeat:
    """Records the phase of training (`at`), and reports when it does not change for `minutes`."""

    def __init__(
        self,
        world: World,
        store: Store | None,
        folder: Path,
        minutes: float | None,
        ends_process: bool,
    ) -> None:
        self._world, self._store, self._folder = world, store, folder
        self._limit = None if minutes is None else minutes * 60
        self._ends_process = ends_process
        self._progress, self._step, self.doing = 0, 0, "starting"
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def of_run(
        cls, training: TrainingSection, world: World, store: Store | None, folder: Path
    ) -> Heartbeat:
        """Return the heartbeat that the section `training` asks for."""
        ends_process = training.hang == "stop"
        return cls(world, store, folder, training.hang_minutes, ends_process)

    def at(self, step: int, doing: str) -> None:
        """Record that training has reached this phase."""
        self._progress += 1
        self._step, self.doing = step, doing

    def start(self) -> None:
        """Start watching."""
        if self._limit is not None:
            target = partial(self._watch, self._limit)
            self._thread = threading.Thread(target=target, name="overt-heartbeat", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _watch(self, limit: float) -> None:
        pause = min(limit / 4, LONGEST_PAUSE)
        number, last_progress, since, warned = 0, -1, time.monotonic(), False
        try:
            while not self._closed.wait(pause):
                number += 1
                self._send(number)
                if self._progress != last_progress:
                    last_progress, since, warned = self._progress, time.monotonic(), False
                elif not warned and time.monotonic() - since > limit:
                    warned = True
                    number = self._report(time.monotonic() - since, number, pause)
        except Exception as error:  # the store is gone: the run is ending, or breaks off anyway
            logger.debug("the heartbeat stopped: %s", error)

    def _send(self, number: int) -> None:
        if self._store is not None:
            host, process = socket.gethostname(), os.getpid()
            beat = Beat(number, self._progress, self._step, self.doing, host, process)
            self._store.set(str(self._world.rank), json.dumps(beat))

    def _read_all(self) -> dict[int, Beat]:
        beats: dict[int, Beat] = {}
        for rank in range(self._world.world_size):
            if self._store is not None and self._store.check([str(rank)]):
                beats[rank] = Beat(*json.loads(self._store.get(str(rank))))
        return beats

    def _report(self, seconds: float, number: int, pause: float) -> int:
        """Dump stacks and collectives of this rank, and name the ranks that are behind."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"rank_{self._world.rank}.txt"
        before = self._read_all()
        with path.open("w") as file:
            file.write(
                f"{time.strftime('%Y-%m-%d %H:%M:%S')} rank {self._world.rank} on "
                f"{socket.gethostname()}: {self.doing} at step {self._step} for {seconds:.0f} s\n"
            )
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        self._write_collectives()
        for _ in range(3):  # long enough for a living process to send again
            number += 1
            self._send(number)
            if self._closed.wait(pause):
                return number
        after = self._read_all()
        verdict = describe(before, after, self._world.world_size)
        with path.open("a") as file:
            file.write(f"{verdict}\n")
        message = (
            f"no progress for {seconds:.0f} s ({self.doing}, step {self._step}). {verdict} Stacks "
            f"of every process are in {self._folder}; training.hang_minutes sets the time, "
            "training.hang what happens then."
        )
        living = [rank for rank, beat in after.items() if beat != before.get(rank)]
        if self._world.rank == min(living, default=self._world.rank):
            print(f"HANG: {message}", file=sys.stderr, flush=True)
        if self._ends_process:
            self._wait_for_reports(living, pause)
            # The main thread waits inside a collective or a driver, where no exception reaches it.
            os._exit(1)
        return number

    def _wait_for_reports(self, living: list[int], pause: float) -> None:
        """Wait for every rank's report: the first rank to exit would end the others."""
        if self._store is None:
            return
        self._store.set(f"reported/{self._world.rank}", "")
        give_up = time.monotonic() + 10 * pause
        report_keys = [f"reported/{rank}" for rank in living]
        while not self._store.check(report_keys) and time.monotonic() < give_up:
            time.sleep(pause / 10)
        time.sleep(pause / 2)  # the one that holds the store must not be the first to go

    def _write_collectives(self) -> None:
        """Write the last collectives of this rank from the flight recorder, if there is one."""
        if self._store is None:
            return
        from torch._C import _distributed_c10d as c10d

        dump = getattr(c10d, "_dump_fr_trace_json", None)
        dump = dump or getattr(c10d, "_dump_nccl_trace_json", None)  # its name before torch 2.13
        if dump is not None:
            path = self._folder / f"collectives_rank_{self._world.rank}.json"
            path.write_bytes(dump())


def describe(before: dict[int, Beat], after: dict[int, Beat], world_size: int) -> str:
    """Describe which ranks keep the others waiting, from two readings of all heartbeats."""
    if world_size == 1:
        return "There is only one rank."
    silent = [rank for rank in range(world_size) if after.get(rank) == before.get(rank)]
    if silent:
        names = ", ".join(_name(rank, after.get(rank)) for rank in silent)
        return f"No heartbeat from {names}: killed, frozen, or its host or network is gone."
    least = min(beat.progress for beat in after.values())
    behind = [rank for rank, beat in after.items() if beat.progress == least]
    if len(behind) == world_size:
        return f"All ranks are in the same phase: {after[0].doing}."
    names = ", ".join(_name(rank, after[rank]) for rank in behind)
    return f"Behind the others: {names}."


def _name(rank: int, beat: Beat | None) -> str:
    if beat is None:
        return f"rank {rank} (no heartbeat yet)"
    return f"rank {rank} ({beat.doing}, step {beat.step}; process {beat.process} on {beat.host})"


def keep_flight_records(folder: Path, environment: Any = os.environ) -> None:
    """Let NCCL record collectives and write them on a timeout; before the group is created."""
    for name, value in {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": str(folder / "flight_rank_"),
    }.items():
        environment.setdefault(name, value)
    if "flight_rank_" in environment["TORCH_FR_DUMP_TEMP_FILE"]:
        folder.mkdir(parents=True, exist_ok=True)  # NCCL does not create folders
