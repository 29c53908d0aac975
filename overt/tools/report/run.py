"""A run as its folder tells it: settings, curves, sessions, events, pictures, and what follows.

Imports no torch.
"""

from __future__ import annotations

import math
import os
import socket
import statistics
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from overt.run.reader import count_of

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif")
VIDEOS = (".mp4", ".webm")
# A run on another host is taken for dead after this many seconds and log lines of silence.
SILENCE_SECONDS = 600.0
SILENCE_LINES = 5
STOPPED_BY = ("Preempted", "KeyboardInterrupt")


@dataclass
class Curve:
    """One metric: its values, some of which may be NaN or Inf, by step and by time."""

    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # seconds since 1970
    values: list[float] = field(default_factory=list)

    @property
    def last(self) -> float:
        return self.values[-1]


@dataclass
class Session:
    """One process group that worked on the run, from its start or resume to its end."""

    begin: float
    end: float  # of the last thing it wrote
    first_step: int
    environment: dict[str, Any]  # host, pid, versions, devices
    exit_code: int | None = None  # None: it said nothing at its end
    error: str | None = None


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
    """The best value of the metric that ranks checkpoints."""

    name: str
    value: float
    step: int
    mode: str


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
    texts: list[Sample] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The last step that anything is known of."""
        return max((curve.steps[-1] for curve in self.curves.values()), default=0)

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
        """The median of recent readings; NaN before there is one."""
        curve = self.curves.get("train/seconds_per_step")
        recent = [value for value in curve.values[-21:] if math.isfinite(value)] if curve else []
        return statistics.median(recent) if recent else math.nan

    @property
    def seconds_left(self) -> float:
        """How long the rest will take; NaN where that is not known."""
        if self.total_steps is None:
            return math.nan
        return max(self.total_steps - self.step, 0) * self.seconds_per_step

    @property
    def seconds_worked(self) -> float:
        return sum(session.end - session.begin for session in self.sessions)

    @property
    def last_sign(self) -> float:
        """When the run last wrote something."""
        return max((session.end for session in self.sessions), default=0.0)

    @cached_property
    def best(self) -> Best | None:
        name = self.config.get("checkpoint.metric_name")
        curve = self.curves.get(f"evaluation/{name}")
        if name is None or curve is None:
            return None
        mode = str(self.config.get("checkpoint.mode", "min"))
        sign = 1 if mode == "max" else -1
        candidates = [
            (sign * value, -step)
            for step, value in zip(curve.steps, curve.values, strict=True)
            if not math.isnan(value)
        ]
        if not candidates:
            return None
        value, step = max(candidates)
        return Best(str(name), sign * value, -step, mode)

    def status(self, now: float | None = None) -> str:
        """running, finished, stopped (by a signal, or silently) or failed."""
        if not self.sessions:
            return "stopped"
        session = self.sessions[-1]
        if session.exit_code is not None:
            if session.exit_code == 0:
                return "finished"
            kind = (session.error or "").partition(":")[0]
            return "stopped" if kind in STOPPED_BY else "failed"
        pid, host = session.environment.get("pid"), session.environment.get("host")
        if isinstance(pid, int) and host == socket.gethostname():
            return "running" if is_alive(pid) else "stopped"
        every = count_of(self.config.get("logging.every_steps")) or 1
        silence = SILENCE_LINES * every * self.seconds_per_step
        patience = max(SILENCE_SECONDS, silence if math.isfinite(silence) else 0.0)
        now = time.time() if now is None else now
        return "running" if now - self.last_sign < patience else "stopped"


def is_alive(pid: int) -> bool:
    """Whether a process of this host exists."""
    if pid <= 0:  # a group of processes to os.kill
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it does, and is someone else's
        return True
    return True
