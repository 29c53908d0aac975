"""Time spent in each phase between the start of a process and its first step."""

from __future__ import annotations

import os
import time
from pathlib import Path


class Phases:
    """Seconds of each phase of a start, in order; a phase ends where it is named."""

    def __init__(self, began: float | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.told = False
        self._last = time.monotonic() if began is None else began

    def end(self, name: str) -> None:
        """Close the current phase under this name; after the first step nothing is counted."""
        if self.told:
            return
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.seconds.items())
        return f"start took {sum(self.seconds.values()):.1f} s: {parts}"


def process_start() -> float | None:
    """When this process was started, by the clock of `time.monotonic`; None where unknown."""
    try:
        text = Path("/proc/self/stat").read_text()
        ticks = int(text.rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return None
    return time.monotonic() - max(age, 0.0)
