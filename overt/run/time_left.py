"""How long a run still takes, by its recent speed. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

RECENT = 5  # readings of the speed
VARIES = 1.5  # slowest by fastest reading, from which on one number would be a false promise

NOTABLE_SECONDS = 60.0  # a difference below is not reported


@dataclass(frozen=True)
class TimeLeft:
    """Seconds until the last step: at the mean recent speed, the fastest and the slowest one."""

    seconds: float
    fastest: float
    slowest: float

    @property
    def varies(self) -> bool:
        return (
            self.slowest > VARIES * self.fastest and self.slowest - self.fastest > NOTABLE_SECONDS
        )


def time_left(steps: int, seconds_per_step: Sequence[float]) -> TimeLeft:
    """Return the time for `steps` more, from readings of the speed, the newest last."""
    recent = [reading for reading in seconds_per_step if math.isfinite(reading)][-RECENT:]
    if not recent:
        return TimeLeft(math.nan, math.nan, math.nan)
    steps = max(steps, 0)
    return TimeLeft(steps * sum(recent) / len(recent), steps * min(recent), steps * max(recent))
