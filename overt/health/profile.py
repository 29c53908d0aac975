"""A trace of some steps, their most expensive operations, and what was allocated on an OOM.

`training.profile_steps=[a,b]` records steps a to b, counted as the log counts them, on every
process; `training.memory_snapshot=true` keeps a history of allocations for the moment when CUDA
runs out of memory. Both write into RUN/profile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from overt.config.schema import TrainingSection
from overt.distributed import World

log = logging.getLogger(__name__)

ROWS = 25  # of the table
HISTORY = 100_000  # allocations remembered
# Where the host waits until the device has caught up; on the CPU, where it would on CUDA.
WAITS = {
    "cuda": ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
    "cpu": ("aten::_local_scalar_dense",),
}
NOTHING: AbstractContextManager[Any] = nullcontext()


class StepProfile:
    """Records the steps that the configuration names; other steps run unchanged."""

    def __init__(self, training: TrainingSection, folder: Path, world: World) -> None:
        self.steps = range(0)
        if training.profile_steps is not None:
            first, last = training.profile_steps
            self.steps = range(first, last + 1)
        self.folder, self.world = folder, world
        self.record: profile | None = None
        self.recorded: list[int] = []
        if training.memory_snapshot and world.device.type == "cuda":
            self._remember_allocations()

    def around(self, step: int) -> AbstractContextManager[Any]:
        """Return the context to run this step in."""
        return self._recorded(step) if step in self.steps else NOTHING

    @contextmanager
    def _recorded(self, step: int) -> Iterator[None]:
        if self.record is None:
            activities = [ProfilerActivity.CPU]
            if self.world.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self.record = profile(activities=activities)
            self.record.start()
        self.recorded.append(step)
        with torch.profiler.record_function(f"step {step}"):
            yield
        if step == self.steps[-1]:
            self.close()

    def close(self) -> None:
        """End the recording, if there is one, and write trace and table."""
        if self.record is None:
            return
        record, self.record = self.record, None
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()  # what was launched belongs to these steps
        record.stop()
        name = f"steps_{self.recorded[0]}_{self.recorded[-1]}_rank{self.world.rank}"
        trace, table = self.folder / f"{name}.json", self.folder / f"{name}.txt"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            record.export_chrome_trace(str(trace))
            table.write_text(summary(record, self.world.device.type, len(self.recorded)))
        except (OSError, RuntimeError) as error:  # a run is worth more than its profile
            log.warning("the profile could not be written to %s (%s)", self.folder, error)
            return
        log.info("profile of steps %d to %d: %s", self.recorded[0], self.recorded[-1], table)

    def _remember_allocations(self) -> None:
        torch.cuda.memory._record_memory_history(max_entries=HISTORY)

        def write(device: int, requested: int, total: int, free: int) -> None:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"out_of_memory_rank{self.world.rank}.pickle"
            torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]
            log.warning("out of memory: the allocations are in %s", path)

        torch._C._cuda_attach_out_of_memory_observer(write)  # type: ignore[attr-defined]


def summary(record: profile, device: str, steps: int) -> str:
    """Return waits of the host per step, and the most expensive operations of a recording."""
    averages = record.key_averages()
    waits = {row.key: row.count for row in averages if row.key in WAITS[device]}
    words = [f"{count / steps:g} x {name}" for name, count in waits.items()]
    key = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
    return (
        f"{steps} steps; the host waits for the device {sum(waits.values()) / steps:g} times per "
        f"step{': ' if words else ''}{', '.join(words)}\n"
        f"{averages.table(sort_by=key, row_limit=ROWS)}\n"
    )
