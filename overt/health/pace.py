"""How fast steps are, how long each rank is busy on its own, and which rank holds up the others.

The time of a whole step does not tell ranks apart: all wait for the slowest. We compare the time
each rank spends before the all-reduce, waiting for data and in the forward pass.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

PARTS = ("waiting for data", "in the forward pass")
SLOWER = 1.5  # times the median of all processes, and
NOTABLE = 0.1  # of a step above it: then a rank is reported


class Rates(NamedTuple):
    """How fast the steps since the last reading were; NaN where none of them counts."""

    seconds_per_step: float
    samples_per_second: float
    data_wait_share: float


class Meter:
    """Times steps and excludes what is not training.

    The first `skip_steps` steps, which compile and warm up, and everything inside `pause()` do not
    count. Times are those of the host: read them where it has caught up with the device, after the
    metrics were read.
    """

    def __init__(self, skip_steps: int = 3, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._skip = skip_steps
        self._begin()

    def step(self, samples: int, wait_seconds: float = 0.0) -> None:
        """Count a step that is done: its samples, and how long it waited for them."""
        if self._skip > 0:
            self._skip -= 1
            self._begin()
            return
        self._steps += 1
        self._samples += samples
        self._waited += wait_seconds

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Around evaluation and saving: the time inside does not count."""
        before = self._clock()
        try:
            yield
        finally:
            self._start += self._clock() - before

    def read(self) -> Rates:
        """Return the rates since the last reading."""
        if self._steps == 0:
            return Rates(math.nan, math.nan, math.nan)
        seconds = max(self._clock() - self._start, 1e-9)
        rates = Rates(
            seconds / self._steps, self._samples / seconds, min(self._waited / seconds, 1.0)
        )
        self._begin()
        return rates

    def _begin(self) -> None:
        self._start = self._clock()
        self._steps = 0
        self._samples = 0
        self._waited = 0.0


class Straggler(NamedTuple):
    """A process that is clearly slower than the others."""

    rank: int
    part: str
    seconds: float  # of this rank, per step
    usual: float  # the median of all processes


class Pace:
    """Own seconds of this process since the last reading; on CUDA only some passes are timed."""

    EVERY = 10  # passes; an event costs the host a few microseconds

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._waited, self._steps = 0.0, 0
        self._forward, self._passes, self._began = 0.0, 0, 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._turn = 0

    def begin_forward(self) -> None:
        """Start timing a forward pass."""
        if not self._on_cuda:
            self._began = time.perf_counter()
            return
        self._turn += 1
        if self._turn % self.EVERY == 0 and not torch.cuda.is_current_stream_capturing():
            pair = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            pair[0].record()
            self._events.append(pair)

    def end_forward(self) -> None:
        """Stop timing the forward pass."""
        if not self._on_cuda:
            self._forward += time.perf_counter() - self._began
            self._passes += 1
        elif (
            self._turn % self.EVERY == 0
            and self._events
            and not torch.cuda.is_current_stream_capturing()
        ):
            self._events[-1][1].record()

    def add_step(self, wait_seconds: float) -> None:
        """Record a step and how long it waited for its data."""
        self._waited += wait_seconds
        self._steps += 1

    def read(self) -> list[float]:
        """Return seconds of each part since the last reading: per step, and per forward pass."""
        for begin, end in self._events:  # the metrics were read, so these events have completed
            end.synchronize()
            self._forward += begin.elapsed_time(end) / 1000
            self._passes += 1
        means = [self._waited / max(self._steps, 1), self._forward / max(self._passes, 1)]
        self._waited, self._steps, self._forward, self._passes = 0.0, 0, 0.0, 0
        self._events = []
        return means


def find_straggler(paces: Sequence[Sequence[float]], seconds_per_step: float) -> Straggler | None:
    """The process that is furthest behind the median in one part, if the difference is notable."""
    slowest: Straggler | None = None
    for part, name in enumerate(PARTS):
        seconds = [pace[part] for pace in paces]
        # The lower one of two: with two processes the slower must not define half of the median.
        usual = statistics.median_low(seconds)
        rank = max(range(len(seconds)), key=seconds.__getitem__)
        excess = seconds[rank] - usual
        is_notable = excess > NOTABLE * seconds_per_step and seconds[rank] > SLOWER * usual
        if is_notable and (slowest is None or excess > slowest.seconds - slowest.usual):
            slowest = Straggler(rank, name, seconds[rank], usual)
    return slowest


class StragglerWatch:
    """Names a process that is slow in two readings in a row, and does so once."""

    def __init__(self) -> None:
        self._suspected: tuple[int, str] | None = None
        self._named: tuple[int, str] | None = None

    def notice(self, paces: Sequence[Sequence[float]], seconds_per_step: float) -> Straggler | None:
        """Return the straggler of this reading, if it is to be reported."""
        slow = find_straggler(paces, seconds_per_step)
        key = None if slow is None else (slow.rank, slow.part)
        is_certain = key is not None and key == self._suspected and key != self._named
        self._suspected = key
        if is_certain:
            self._named = key
        return slow if is_certain else None
