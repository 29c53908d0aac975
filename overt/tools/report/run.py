"""A run as its folder tells it: settings, curves, sessions, events, pictures, and what follows.

Imports no torch.
"""

from __future__ import annotations

import math
import os
import socket
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from overt.errors import STOPPED_EXIT_CODES, Interrupted, Preempted
from overt.run.reader import count_of
from overt.run.time_left import RECENT, TimeLeft, time_left

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif")
VIDEOS = (".mp4", ".webm")
# A run on another host is taken for dead after this many seconds and log lines of silence.
SILENCE_SECONDS = 600.0
SILENCE_LINES = 5


STOPS = tuple(kind.__name__ for kind in (Preempted, Interrupted, KeyboardInterrupt))


@dataclass
class Curve:
    """One metric: its values, some of which may be NaN or Inf, by step and by time."""

    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # seconds since 1970
    values: list[float] = field(default_factory=list)

    @property
    def last(self) -> float:
        return self.values[-1]


def plain(value: float) -> float | None:
    """Seven digits are more than a screen shows; NaN and Inf are gaps in the curve."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


class Hours(dict[float, float | None]):
    """From times to hours since `begin`: all metrics of a row have the same time."""

    def __init__(self, begin: float) -> None:
        super().__init__()
        self.begin = begin

    def __missing__(self, moment: float) -> float | None:
        hours = self[moment] = plain((moment - self.begin) / 3600)
        return hours


@dataclass
class Session:
    """One process group that worked on the run, from its start or resume to its end."""

    begin: float
    end: float  # of the last thing it wrote
    first_step: int
    environment: dict[str, Any]  # host, pid, versions, devices
    exit_code: int | None = None  # None: it said nothing at its end
    error: str | None = None
    last_step: int | None = None  # where it stood at its end

    @property
    def was_stopped(self) -> bool:
        """Whether someone asked it to end; older runs recorded that as an error."""
        return self.exit_code in STOPPED_EXIT_CODES or (
            self.exit_code not in (None, 0) and (self.error or "").partition(":")[0] in STOPS
        )


@dataclass(frozen=True)
class Picture:
    """A picture or video that was logged, or that `overt evaluate` left."""

    name: str
    step: int | None  # None: drawn after training
    path: Path
    caption: str | None = None

    @property
    def is_film(self) -> bool:
        return self.path.suffix.lower() in VIDEOS


@dataclass(frozen=True)
class Sample:
    """A text that was logged."""

    name: str
    step: int
    text: str


@dataclass(frozen=True)
class Best:
    """A value of the metric that ranks checkpoints: of the best one that exists."""

    name: str
    value: float
    step: int


@dataclass
class Run:
    """Everything a run's folder says. `events` are those that still hold after the last resume."""

    path: Path
    name: str
    config: dict[str, Any]  # dotted key -> value
    commands: list[str]
    curves: dict[str, Curve]
    events: list[dict[str, Any]]
    sessions: list[Session]
    pictures: list[Picture]
    scores: dict[str, float]  # of `overt evaluate`
    best: Best | None = None
    sampled_bytes: int = 0  # of a log so large that its curves are samples
    texts: list[Sample] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The last step that anything is known of: where the run ended, or last logged."""
        last = self.sessions[-1].last_step if self.sessions else None
        return max([last or 0, *(curve.steps[-1] for curve in self.curves.values())])

    @cached_property
    def hours(self) -> Hours:
        """Hours since the run's first start, or since its first row where that is not known."""
        if self.sessions:
            return Hours(self.sessions[0].begin)
        times = [moment for curve in self.curves.values() for moment in curve.times[:1]]
        return Hours(min(times, default=math.nan))

    @cached_property
    def total_steps(self) -> int | None:
        """How long the run is to be; None where its configuration and rows do not tell."""
        steps = count_of(self.config.get("training.num_steps"))
        if steps is not None:
            return steps
        epochs = count_of(self.config.get("training.num_epochs"))
        passed = self.curves.get("train/epoch")
        if epochs is None or passed is None or not passed.last > 0:
            return None
        total = epochs * passed.steps[-1] / passed.last
        return round(total) if math.isfinite(total) else None

    @property
    def seconds_per_step(self) -> float:
        """The mean of recent readings; NaN before there is one."""
        return time_left(1, self._speeds).seconds

    @property
    def time_left(self) -> TimeLeft:
        """How long the rest will take at the recent speed; NaN where that is not known."""
        if self.total_steps is None:
            return time_left(0, ())
        return time_left(self.total_steps - self.step, self._speeds)

    @property
    def _speeds(self) -> list[float]:
        curve = self.curves.get("train/seconds_per_step")
        return [] if curve is None else curve.values[-RECENT:]

    @property
    def seconds_worked(self) -> float:
        return sum(session.end - session.begin for session in self.sessions)

    @property
    def last_sign(self) -> float:
        """When the run last wrote something."""
        return max((session.end for session in self.sessions), default=0.0)

    @property
    def score(self) -> Best | None:
        """The last evaluation by the metric that ranks checkpoints, saved or not."""
        name = self.config.get("checkpoint.metric_name")
        curve = self.curves.get(f"evaluation/{name}")
        return None if curve is None else Best(str(name), curve.last, curve.steps[-1])

    def status(self, now: float | None = None) -> str:
        """running, finished, stopped (by a signal, or silently) or failed."""
        if not self.sessions:
            return "stopped"
        session = self.sessions[-1]
        if session.exit_code is not None:
            if session.exit_code == 0:
                return "finished"
            return "stopped" if session.was_stopped else "failed"
        pid, host = session.environment.get("pid"), session.environment.get("host")
        if isinstance(pid, int) and host == socket.gethostname():
            return "running" if is_alive(pid) else "stopped"
        every_steps = count_of(self.config.get("logging.every_steps")) or 1
        silence = SILENCE_LINES * every_steps * self.seconds_per_step
        patience = max(SILENCE_SECONDS, silence if math.isfinite(silence) else 0.0)
        now = time.time() if now is None else now
        return "running" if now - self.last_sign < patience else "stopped"


def is_alive(pid: int) -> bool:
    """Return whether a process of this host exists."""
    if pid <= 0:  # a group of processes to os.kill
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it does, and is someone else's
        return True
    return True
