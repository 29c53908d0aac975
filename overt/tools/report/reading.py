"""From run folders to `Run`s: which folders are runs, and what their files say, also as they grow.

A file that cannot be read costs what it would have said, not the run. Imports no torch.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from overt.errors import OvertError, nearest
from overt.run.reader import Follower, Row, number_of, step_of, time_of
from overt.tools.report.run import PICTURES, VIDEOS, Curve, Picture, Run, Sample, Session

# What YAML of any origin can make its reader raise.
UNREADABLE = (
    OSError, ValueError, TypeError, AttributeError, RecursionError, YAMLError,
    OmegaConfBaseException,
)  # fmt: skip
LONGEST_TEXT = 2**20  # bytes


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's: what a run writes first is there."""
    return (folder / "events.jsonl").is_file() or (folder / "metrics.jsonl").is_file()


def find_runs(folder: Path, depth: int = 3) -> list[Path]:
    """The run folders in `folder` and up to `depth` levels below; inside a run is not searched."""
    if not folder.is_dir():
        raise OvertError(f"{folder} is not a directory; give the output_dir of your runs")
    return _find(folder, depth)


def _find(folder: Path, depth: int) -> list[Path]:
    with suppress(PermissionError):  # what may not be looked into holds no run of the reader's
        if is_run(folder):
            return [folder]
        if depth > 0:
            inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
            return [run for path in inside if path.is_dir() for run in _find(path, depth - 1)]
    return []


def open_run(folder: Path, name: str | None = None) -> Run:
    """Read a run's folder; refused where it is not one."""
    with RunFollower(folder, name) as follower:
        run = follower.read()
    command = folder / "command.txt"
    lines = command.read_text(errors="replace").splitlines() if command.is_file() else []
    return replace(
        run,
        commands=lines,
        pictures=read_pictures(folder, run.events),
        texts=read_texts(folder, run.events),
        scores=read_scores(folder / "evaluation" / "scores.json"),
    )


def open_runs(folders: list[Path]) -> list[Run]:
    """Read several runs, each named by as much of its path as tells it apart."""
    whole = [folder.resolve().parts for folder in folders]
    if len(set(whole)) < len(whole):
        raise OvertError("a run is named twice; name each run once")
    for depth in range(1, max(map(len, whole), default=1) + 1):
        names = ["/".join(parts[-depth:]) for parts in whole]
        if len(set(names)) == len(names):
            break
    return [open_run(folder, name) for folder, name in zip(folders, names, strict=True)]


class RunFollower:
    """Reads a run again and again, each byte of its logs once: settings, curves, events."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        if not is_run(folder):
            raise _not_a_run(folder)
        self.folder = folder
        self.name = name or folder.resolve().name
        self._metrics = Follower(folder / "metrics.jsonl")
        self._events = Follower(folder / "events.jsonl")
        self._curves = _Curves()
        self._history = _History()
        self._config: dict[str, Any] = {}
        self._config_mark: tuple[int, ...] = ()

    def __enter__(self) -> RunFollower:
        return self

    def __exit__(self, *_: object) -> None:
        self._metrics.close()
        self._events.close()

    def read(self) -> Run:
        """The run as it is now, without commands, pictures and scores of `overt evaluate`."""
        if self._metrics.was_replaced():  # a resume cut what lay beyond its checkpoint
            self._curves = _Curves()
        if self._events.was_replaced():
            self._history = _History()
        for row in self._metrics.rows():
            self._curves.add(row)
        for event in self._events.rows():
            self._history.add(event)
        return Run(
            path=self.folder,
            name=self.name,
            config=self._settings(),
            commands=[],
            curves=self._curves.by_name,
            events=self._history.events,
            sessions=_until_last_row(self._history.sessions, self._curves.times),
            pictures=[],
            scores={},
        )

    def _settings(self) -> dict[str, Any]:
        """The configuration, read again only where its file is another one."""
        path = self.folder / "config.yaml"
        try:
            stat = path.stat()
        except OSError:
            return {}
        mark = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if mark != self._config_mark:
            self._config, self._config_mark = read_config(path), mark
        return self._config


def _not_a_run(folder: Path) -> OvertError:
    siblings = find_runs(folder.parent, depth=1) if folder.parent.is_dir() else []
    inside = find_runs(folder) if folder.is_dir() else []
    hint = nearest(str(folder), [str(sibling) for sibling in siblings])
    if inside:
        hint = f" (inside it are {', '.join(map(str, inside[:5]))})"
    return OvertError(
        f"{folder} is not a run folder: it has neither metrics.jsonl nor events.jsonl{hint}; "
        "`overt runs DIR` lists the runs below DIR"
    )


class _Curves:
    """Every metric of metrics.jsonl, in the order in which they first appear."""

    def __init__(self) -> None:
        self.by_name: dict[str, Curve] = {}
        self.times: list[float] = []  # of all rows with a number

    def add(self, row: Row) -> None:
        step, moment = step_of(row), time_of(row)
        if step is None:
            return
        numbers = {
            name: number_of(value) for name, value in row.items() if name not in ("step", "time")
        }
        known = {name: number for name, number in numbers.items() if number is not None}
        for name, number in known.items():
            curve = self.by_name.setdefault(name, Curve())
            curve.steps.append(step)
            curve.times.append(math.nan if moment is None else moment)
            curve.values.append(number)
        if known and moment is not None:
            self.times.append(moment)


class _History:
    """What happened, less what a resume took back, and the sessions it happened in."""

    def __init__(self) -> None:
        self.events: list[Row] = []
        self.sessions: list[Session] = []

    def add(self, event: Row) -> None:
        moment, kind = time_of(event), event.get("kind")
        if moment is None or not isinstance(kind, str):
            return
        if kind in ("start", "resume"):
            self._begin(event, moment, kind)
        elif self.sessions:
            session = self.sessions[-1]
            session.end = max(session.end, moment)
            if kind == "finish":
                code, error = event.get("exit_code"), event.get("error")
                session.exit_code = code if isinstance(code, int) else 1
                session.error = None if error is None else str(error)
        self.events.append(event)

    def _begin(self, event: Row, moment: float, kind: str) -> None:
        first = (step_of(event) or 0) if kind == "resume" else 0
        # Steps beyond the checkpoint come again, and what belongs to them too.
        # A fresh start takes back all, marks of earlier resumes too.
        marks = ("resume",) if kind == "resume" else ()
        self.events = [
            earlier
            for earlier in self.events
            if earlier["kind"] in marks or _step_or_before(earlier) <= first
        ]
        known = ("time", "kind", "step")
        environment = {key: value for key, value in event.items() if key not in known}
        self.sessions.append(Session(moment, moment, first, environment))


def _step_or_before(event: Mapping[str, Any]) -> int:
    """The step of an event; one without a step was before them all."""
    step = step_of(event)
    return -1 if step is None else step


def _until_last_row(sessions: list[Session], times: list[float]) -> list[Session]:
    """Sessions that last until their last row at least: one that was killed logged no end."""
    times.sort()  # nearly sorted already: they are appended as they come
    extended = []
    for index, session in enumerate(sessions):
        limit = sessions[index + 1].begin if index + 1 < len(sessions) else math.inf
        position = bisect_left(times, limit) - 1
        last = times[position] if position >= 0 else -math.inf
        end = max(session.end, last) if last >= session.begin else session.end
        extended.append(replace(session, end=end))
    return extended


def read_config(path: Path) -> dict[str, Any]:
    """The resolved configuration, flat: dotted key to value; empty where it cannot be read."""
    try:
        values = OmegaConf.to_container(OmegaConf.load(path))
    except UNREADABLE:
        return {}
    return dict(_leaves(values)) if isinstance(values, dict) else {}


def _leaves(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield _printable(prefix), _printable(values) if isinstance(values, str) else values


def _printable(text: str) -> str:
    return text.encode(errors="replace").decode()


def read_pictures(folder: Path, events: list[Row]) -> list[Picture]:
    """Pictures in the order of their names and steps; what lies outside the folder is ignored."""
    pictures: dict[tuple[str, int | None], Picture] = {}
    for event, path in _files_of(folder, events, ("image", "video")):
        if _is_picture(path):
            name, step = str(event.get("name")), _step_or_before(event)
            caption = event.get("caption")
            caption = None if caption is None else str(caption)
            pictures[name, step] = Picture(name, step, path, caption)  # a later one replaces it
    for path in sorted((folder / "evaluation").glob("*")):
        if _is_picture(path):
            name = f"evaluation/{path.stem}"
            pictures[name, None] = Picture(name, None, path)
    return sorted(
        pictures.values(),
        key=lambda picture: (picture.name, math.inf if picture.step is None else picture.step),
    )


def read_texts(folder: Path, events: list[Row]) -> list[Sample]:
    """Texts in the order of their names and steps; what lies outside the folder is ignored."""
    texts: dict[tuple[str, int], Sample] = {}
    for event, path in _files_of(folder, events, ("text",)):
        with suppress(OSError):
            if path.suffix == ".txt" and path.stat().st_size <= LONGEST_TEXT:
                name, step = str(event.get("name")), _step_or_before(event)
                texts[name, step] = Sample(name, step, path.read_text(errors="replace"))
    return sorted(texts.values(), key=lambda sample: (sample.name, sample.step))


def _files_of(
    folder: Path, events: list[Row], kinds: tuple[str, ...]
) -> Iterator[tuple[Row, Path]]:
    """Return events that name a file, and the files; none outside of the folder."""
    home = folder.resolve()
    for event in events:
        if event["kind"] in kinds:
            with suppress(OSError, ValueError):  # a name that no file system takes
                path = (folder / str(event.get("path"))).resolve()
                if path.is_relative_to(home) and path.is_file():
                    yield event, path


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES + VIDEOS and path.is_file()


def read_scores(path: Path) -> dict[str, float]:
    """The scores that `overt evaluate` wrote, where it did."""
    try:
        scores = json.loads(path.read_text())["scores"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(scores, dict):
        return {}
    numbers = {str(name): number_of(value) for name, value in scores.items()}
    return {name: value for name, value in numbers.items() if value is not None}
