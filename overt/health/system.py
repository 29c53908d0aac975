"""The machine of a run: its description, and utilization of CPU, memory, disk and network.

Read from /proc and from torch.cuda (which asks NVML where nvidia-ml-py is installed). psutil would
save about 35 lines and add a compiled dependency: it gives the same numbers, takes 0.46 ms for a
reading where this takes 0.34 ms, and 45 ms to import (`python benchmarks/system.py`, two ARM cores
shared with other work).
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from overt import __version__
from overt.distributed import get_world_size

GIGABYTE, MEGABYTE = 1e9, 1e6
SECTOR = 512  # bytes; what /proc/diskstats counts in, whatever the disk


class Counters(NamedTuple):
    """The host's counters since it was started."""

    seconds: float
    busy: float  # ticks of all processors
    ticks: float
    read_bytes: int
    written_bytes: int
    received_bytes: int
    sent_bytes: int


class SystemMeter:
    """Reads this host; rates are since the last reading, so the first one has none."""

    def __init__(
        self, folder: Path, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._proc = proc
        self._clock = clock
        self._last: Counters | None = None

    def host(self) -> dict[str, float]:
        """Return memory, load, free disk space; rates from the second reading on."""
        numbers = {
            "memory_gb": resident_bytes() / GIGABYTE,
            "cpu_load": os.getloadavg()[0],
            "disk_free_gb": shutil.disk_usage(self._folder).free / GIGABYTE,
        }
        if not (self._proc / "stat").exists():  # not Linux
            return numbers
        numbers["host_memory_share"] = self._used_memory_fraction()
        now, before = self._count(), self._last
        self._last = now
        if before is None or now.seconds <= before.seconds:
            return numbers
        if now.ticks > before.ticks:
            numbers["cpu_share"] = (now.busy - before.busy) / (now.ticks - before.ticks)
        seconds = now.seconds - before.seconds
        for name in ("read", "written", "received", "sent"):
            device = "disk" if name in ("read", "written") else "network"
            amount = getattr(now, f"{name}_bytes") - getattr(before, f"{name}_bytes")
            numbers[f"{device}_{name}_mb_per_second"] = amount / MEGABYTE / seconds
        return numbers

    def _used_memory_fraction(self) -> float:
        lines = (line.split() for line in (self._proc / "meminfo").read_text().splitlines())
        kilobytes = {words[0].rstrip(":"): float(words[1]) for words in lines if len(words) > 1}
        return 1.0 - kilobytes["MemAvailable"] / kilobytes["MemTotal"]

    def _count(self) -> Counters:
        ticks = [
            float(word) for word in (self._proc / "stat").read_text().split("\n")[0].split()[1:9]
        ]
        idle = ticks[3] + ticks[4]  # idle, and waiting for a disk
        read = written = received = sent = 0
        for line in (self._proc / "diskstats").read_text().splitlines():
            words = line.split()
            # Whole disks only: what a partition reads, its disk reads too.
            if _is_disk(words[2]):
                read += int(words[5]) * SECTOR
                written += int(words[9]) * SECTOR
        for line in (self._proc / "net" / "dev").read_text().splitlines()[2:]:
            name, _, rest = line.partition(":")
            if name.strip() != "lo":
                received += int(rest.split()[0])
                sent += int(rest.split()[8])
        busy = sum(ticks) - idle
        return Counters(self._clock(), busy, sum(ticks), read, written, received, sent)


@cache
def _is_disk(name: str) -> bool:
    return Path("/sys/block", name).exists() and not name.startswith(("loop", "ram"))


def gpu_memory(index: int) -> dict[str, float]:
    """Return what this process holds of a GPU's memory."""
    return {
        f"gpu{index}_memory_allocated_gb": torch.cuda.memory_allocated(index) / GIGABYTE,
        f"gpu{index}_memory_reserved_gb": torch.cuda.memory_reserved(index) / GIGABYTE,
    }


def gpu_use(index: int) -> dict[str, float]:
    """Return how busy a GPU is, by NVML: needs nvidia-ml-py."""
    return {
        f"gpu{index}_utilization": torch.cuda.utilization(index),
        f"gpu{index}_memory_utilization": torch.cuda.memory_usage(index),
        f"gpu{index}_temperature_c": torch.cuda.temperature(index),
        f"gpu{index}_power_w": torch.cuda.power_draw(index) / 1000,
    }


def resident_bytes() -> int:
    """Return the memory of this process that is in use, in bytes."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except FileNotFoundError:  # not Linux: the peak, which macOS gives in bytes
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * os.sysconf("SC_PAGE_SIZE")


def environment() -> dict[str, Any]:
    """Describe what this session runs on and with: enough to tell two sessions apart."""
    facts: dict[str, Any] = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "processes": get_world_size(),
        "device": f"CPU, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "overt": __version__,
        "system": platform.platform(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        facts["device"] = torch.cuda.get_device_name()
        facts["cuda"] = torch.version.cuda
    if "SLURM_JOB_ID" in os.environ:
        facts["slurm_job"] = os.environ["SLURM_JOB_ID"]
    commit = commit_of(Path.cwd())
    if commit is not None:
        facts["commit"] = commit
    return facts


@cache
def commit_of(folder: Path) -> str | None:
    """Return the commit of the code, `-dirty` where it was changed; None outside git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        answer = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
