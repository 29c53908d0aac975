"""A run as its folder tells it: settings, curves, sessions, what happened, pictures.

Reads files only, also while they are being written, and imports neither torch nor the engine.
"""

from __future__ import annotations

import json
import math
import os
import socket
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from overt.errors import OvertError, nearest

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif")
VIDEOS = (".mp4", ".webm")
# A run on another host is taken for dead after so many seconds, and so many log lines, of silence.
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

    @property
    def step(self) -> int:
        """The last step that anything is known of."""
        return max((curve.steps[-1] for curve in self.curves.values()), default=0)

    @cached_property
    def total_steps(self) -> int | None:
        """How long the run is to be; None where its configuration and rows do not tell."""
        steps = self.config.get("training.num_steps")
        if isinstance(steps, int):
            return steps
        epochs, passed = self.config.get("training.num_epochs"), self.curves.get("train/epoch")
        if isinstance(epochs, int) and passed is not None and passed.last > 0:
            return round(epochs * passed.steps[-1] / passed.last)
        return None

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
        known = [
            (sign * value, -step)
            for step, value in zip(curve.steps, curve.values, strict=True)
            if not math.isnan(value)
        ]
        if not known:
            return None
        value, step = max(known)
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
        every = self.config.get("logging.every_steps")
        lines = SILENCE_LINES * (every if isinstance(every, int) else 1) * self.seconds_per_step
        patience = max(SILENCE_SECONDS, lines if math.isfinite(lines) else 0.0)
        now = time.time() if now is None else now
        return "running" if now - self.last_sign < patience else "stopped"


def is_alive(pid: int) -> bool:
    """Whether a process of this host exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it does, and is someone else's
        return True
    return True


# --- reading -------------------------------------------------------------------------------------


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's: what a run writes first is there."""
    return (folder / "events.jsonl").is_file() or (folder / "metrics.jsonl").is_file()


def find_runs(folder: Path, depth: int = 3) -> list[Path]:
    """The run folders in `folder` and so many levels below; inside a run is not searched."""
    if not folder.is_dir():
        raise OvertError(f"{folder} is no folder; give the output_dir of your runs")
    if is_run(folder):
        return [folder]
    if depth == 0:
        return []
    inside = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return [run for entry in inside if entry.is_dir() for run in find_runs(entry, depth - 1)]


def open_run(folder: Path, name: str | None = None) -> Run:
    """Read a run's folder; refused where it is none."""
    if not is_run(folder):
        others = find_runs(folder.parent, depth=1) if folder.parent.is_dir() else []
        inside = find_runs(folder) if folder.is_dir() else []
        hint = nearest(str(folder), [str(other) for other in others])
        if inside:
            hint = f" (inside it are {', '.join(str(one) for one in inside[:5])})"
        raise OvertError(
            f"{folder} is no run folder, it has neither metrics.jsonl nor events.jsonl{hint}; "
            "`overt runs DIR` lists the runs below DIR"
        )
    events, sessions = read_events(folder / "events.jsonl")
    curves = read_curves(folder / "metrics.jsonl")
    _extend(sessions, curves)
    command = folder / "command.txt"
    return Run(
        path=folder,
        name=name or folder.resolve().name,
        config=read_config(folder / "config.yaml"),
        commands=command.read_text(errors="replace").splitlines() if command.is_file() else [],
        curves=curves,
        events=events,
        sessions=sessions,
        pictures=read_pictures(folder, events),
        scores=read_scores(folder / "evaluation" / "scores.json"),
    )


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines; a torn one, still being written, is passed over."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row


def read_curves(path: Path) -> dict[str, Curve]:
    """Every metric of metrics.jsonl, in the order in which they first appear."""
    curves: dict[str, Curve] = {}
    for row in read_lines(path):
        step, moment = row.pop("step", None), _number(row.pop("time", None))
        if not isinstance(step, int):
            continue
        for name, value in row.items():
            number = _number(value)
            if number is not None:
                curve = curves.setdefault(str(name), Curve())
                curve.steps.append(step)
                curve.times.append(math.nan if moment is None else moment)
                curve.values.append(number)
    return curves


def _number(value: Any) -> float | None:
    """A logged number: NaN and Inf are written as strings."""
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def read_events(path: Path) -> tuple[list[dict[str, Any]], list[Session]]:
    """What happened, less what a resume took back, and the sessions it happened in."""
    events: list[dict[str, Any]] = []
    sessions: list[Session] = []
    for event in read_lines(path):
        moment, kind = _number(event.get("time")), event.get("kind")
        if moment is None or not isinstance(kind, str):
            continue
        if kind in ("start", "resume"):
            first = event.get("step") if kind == "resume" else 0
            first = first if isinstance(first, int) else 0
            # Steps beyond the checkpoint come again, and what belongs to them too.
            # A fresh start takes back all, marks of earlier resumes too.
            marks = ("resume",) if kind == "resume" else ()
            events = [one for one in events if _step_of(one) <= first or one["kind"] in marks]
            known = ("time", "kind", "step")
            environment = {key: value for key, value in event.items() if key not in known}
            sessions.append(Session(moment, moment, first, environment))
        elif sessions:
            sessions[-1].end = max(sessions[-1].end, moment)
            if kind == "finish":
                code, error = event.get("exit_code"), event.get("error")
                sessions[-1].exit_code = code if isinstance(code, int) else 1
                sessions[-1].error = None if error is None else str(error)
        events.append(event)
    return events, sessions


def _step_of(event: Mapping[str, Any]) -> int:
    step = event.get("step")
    return step if isinstance(step, int) else -1


def _extend(sessions: list[Session], curves: Mapping[str, Curve]) -> None:
    """A session lasts until its last row at least: it may not have been able to say goodbye."""
    ends = [session.begin for session in sessions[1:]] + [math.inf]
    for session, before in zip(sessions, ends, strict=True):
        times = (
            moment
            for curve in curves.values()
            for moment in curve.times
            if session.begin <= moment < before
        )
        session.end = max(session.end, max(times, default=session.end))


def read_config(path: Path) -> dict[str, Any]:
    """The resolved configuration, flat: dotted key to value; empty where it cannot be read."""
    try:
        values = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, YAMLError, OmegaConfBaseException):
        return {}
    return dict(_leaves(values)) if isinstance(values, dict) else {}


def _leaves(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, values


def read_pictures(folder: Path, events: list[dict[str, Any]]) -> list[Picture]:
    """Pictures in the order of their names and steps; what lies outside the folder is left out."""
    found: dict[tuple[str, int | None], Picture] = {}
    home = folder.resolve()
    for event in events:
        if event["kind"] not in ("image", "video"):
            continue
        path = (folder / str(event.get("path"))).resolve()
        if path.is_relative_to(home) and _is_picture(path):
            name, step, caption = str(event.get("name")), _step_of(event), event.get("caption")
            caption = None if caption is None else str(caption)
            found[name, step] = Picture(name, step, path, caption)  # a later one replaces it
    for path in sorted((folder / "evaluation").glob("*")):
        if _is_picture(path):
            name = f"evaluation/{path.stem}"
            found[name, None] = Picture(name, None, path)
    last = math.inf
    return sorted(
        found.values(), key=lambda one: (one.name, last if one.step is None else one.step)
    )


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES + VIDEOS and path.is_file()


def read_scores(path: Path) -> dict[str, float]:
    """What `overt evaluate` found, if it was asked."""
    try:
        scores = json.loads(path.read_text())["scores"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if not isinstance(scores, dict):
        return {}
    numbers = {str(name): _number(value) for name, value in scores.items()}
    return {name: value for name, value in numbers.items() if value is not None}


def open_runs(folders: list[Path]) -> list[Run]:
    """Read several runs, each under a name of its own: as much of its path as tells it apart."""
    whole = [folder.resolve().parts for folder in folders]
    if len(set(whole)) < len(whole):
        raise OvertError("a run is named twice; name each run once")
    for depth in range(1, max(map(len, whole), default=1) + 1):
        names = ["/".join(parts[-depth:]) for parts in whole]
        if len(set(names)) == len(names):
            break
    return [open_run(folder, name) for folder, name in zip(folders, names, strict=True)]
