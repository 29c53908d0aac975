"""From run folders to `Run`s: which folders are runs, and what their files say, also as they grow.

An unreadable file loses its own content, not the run. Imports no torch.
"""

from __future__ import annotations

import json
import logging
import math
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from overt.errors import ConfigError, OvertError, nearest
from overt.run.folder import OWN_FOLDERS
from overt.run.reader import Follower, Row, number_of, step_of, time_of
from overt.tools.report import large
from overt.tools.report.best import read_best
from overt.tools.report.run import PICTURES, VIDEOS, Curve, Picture, Run, Sample, Session
from overt.tools.report.settings import read_config, read_some

logger = logging.getLogger(__name__)

BRIEF_BYTES = 2**14  # of the events, for a line about a run
BRIEF_KEYS = frozenset(
    ("training.num_steps", "training.num_epochs", "logging.every_steps", "checkpoint.metric_name")
)
LARGEST_TEXT = 2**20  # bytes of a file of commands or scores


@dataclass(frozen=True)
class Budget:
    """How much of a run's metrics is read: all of a small file, samples of a larger one."""

    whole_bytes: int = large.WHOLE_BYTES
    samples: int = large.SAMPLES

    @classmethod
    def shared_by(cls, runs: int) -> Budget:
        """Return what each of several runs may take, so that all together take no longer."""
        runs = max(runs, 1)
        return cls(max(large.WHOLE_BYTES // runs, 2**12), max(large.SAMPLES // runs, 6))


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run's: what a run writes first is there."""
    return (folder / "events.jsonl").is_file() or (folder / "metrics.jsonl").is_file()


def find_runs(folder: Path, depth: int = 3) -> list[Path]:
    """Return the run folders in `folder` and up to `depth` levels below, also inside a run.

    A sweep writes its runs there if an earlier run has its exp_name.
    """
    if not folder.is_dir():
        raise OvertError(f"{folder} is not a directory; give the output_dir of your runs")
    return _find(folder, depth)


def _find(folder: Path, depth: int) -> list[Path]:
    runs: list[Path] = []
    with suppress(PermissionError):  # a folder without permission holds no run of this user
        if is_run(folder):
            runs.append(folder)
        if depth > 0:
            skipped = OWN_FOLDERS if runs else ()
            inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
            folders = [path for path in inside if path.name not in skipped and path.is_dir()]
            runs += [run for path in folders for run in _find(path, depth - 1)]
    return runs


def open_brief(folder: Path, name: str | None = None) -> Run:
    """Read as much of a run's folder as a line of `overt runs` needs."""
    with RunFollower(folder, name, brief=True) as follower:
        return follower.read()


def open_run(
    folder: Path, name: str | None = None, budget: Budget | None = None, home: Path | None = None
) -> Run:
    """Read a run's folder; refused where it is not one. `home`: the folder without links."""
    with RunFollower(folder, name, budget=budget, home=home) as follower:
        run, home = follower.read(), follower.home
    return replace(
        run,
        commands=_text(own_file(home, "command.txt")).splitlines(),
        pictures=read_pictures(home, run.events),
        texts=read_texts(home, run.events),
        scores=read_scores(_text(own_file(home, "evaluation/scores.json"))),
    )


def _text(path: Path | None) -> str:
    """Return the beginning of a text file; empty where it cannot be read."""
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_TEXT).decode(errors="replace")
    except OSError:
        return ""


def open_runs(folders: list[Path]) -> list[Run]:
    """Read several runs, each named by as much of its path as tells it apart."""
    homes = [folder.resolve() for folder in folders]
    folder_parts = [home.parts for home in homes]
    if len(set(folder_parts)) < len(folder_parts):
        raise ConfigError("a run is named twice; name each run once")
    for depth in range(1, max(map(len, folder_parts), default=1) + 1):
        names = ["/".join(parts[-depth:]) for parts in folder_parts]
        if len(set(names)) == len(names):
            break
    budget = Budget.shared_by(len(folders))
    runs = []
    for folder, home, name in zip(folders, homes, names, strict=True):
        try:
            runs.append(open_run(folder, name, budget, home))
        except OSError as error:  # of one run's files: the others are shown
            logger.warning("%s is left out: %s", folder, error.strerror or error)
    if not runs:
        raise OvertError("none of these runs can be read; check the permissions of their files")
    return runs


class RunFollower:
    """Reads a run again and again, each byte of its logs once: settings, curves, events.

    Of a log that is larger than `budget.whole_bytes` it reads samples, the rows with scores and the
    end. With `brief` it reads the end alone: enough for a line about the run.
    """

    def __init__(
        self,
        folder: Path,
        name: str | None = None,
        *,
        brief: bool = False,
        budget: Budget | None = None,
        home: Path | None = None,
    ) -> None:
        if not is_run(folder):
            raise _not_a_run(folder)
        self.folder = folder
        self.home = home or folder.resolve()  # no link leads out of it
        self.name = name or self.home.name
        self.brief, self.budget = brief, budget or Budget()
        self._config: dict[str, Any] = {}
        self._config_mark: tuple[int, ...] = ()
        self._begin_metrics()
        self._begin_events()

    def __enter__(self) -> RunFollower:
        return self

    def __exit__(self, *_: object) -> None:
        self._metrics.close()
        self._events.close()

    def read(self) -> Run:
        """The run as it is now, without commands, pictures and scores of `overt evaluate`."""
        if self._metrics.was_replaced():  # a resume cut what lay beyond its checkpoint
            self._begin_metrics()
        if self._events.was_replaced():
            self._begin_events()
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
            best=read_best(self.folder / "checkpoints"),
            sampled_bytes=self._sampled_bytes,
        )

    def _begin_metrics(self) -> None:
        path = self._own_file("metrics.jsonl")
        size = large.size_of(path)
        self._curves, self._sampled_bytes, tail = _Curves(), 0, None
        if self.brief:
            tail = large.tail_with_rows(path, size)
        elif size > self.budget.whole_bytes:
            tail = min(large.TAIL_BYTES, self.budget.whole_bytes // 2)
            tail = max(tail, large.tail_with_rows(path, size))
            self._sampled_bytes = size
            for row in large.rows_before(path, size - tail, large.SCORES, self.budget.samples):
                self._curves.add(row)
        self._metrics = Follower(path, tail)

    def _begin_events(self) -> None:
        path = self._own_file("events.jsonl")
        size = large.size_of(path)
        self._history, tail = _History(), None
        if size > (BRIEF_BYTES if self.brief else large.WHOLE_BYTES):
            tail = BRIEF_BYTES if self.brief else large.TAIL_BYTES
            for event in large.rows_before(path, size - tail, large.SESSIONS, 0):
                self._history.add(event)
        self._events = Follower(path, tail)

    def _own_file(self, name: str) -> Path:
        """Return the path of a log; one that leads out of the run folder is taken for missing."""
        return own_file(self.home, name) or self.home / "leads" / "nowhere"

    def _settings(self) -> dict[str, Any]:
        """Return the configuration, read again only where its file is another one."""
        path = own_file(self.home, "config.yaml")
        try:
            stat = path.stat() if path is not None else None
        except OSError:
            stat = None
        if path is None or stat is None:
            return {}
        mark = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if mark != self._config_mark:
            read = partial(read_some, keys=BRIEF_KEYS) if self.brief else read_config
            self._config, self._config_mark = read(path), mark
        return self._config


def own_file(home: Path, name: str) -> Path | None:
    """Return the path of a run's file; None where a link leads out of the run folder."""
    path = home / name
    folder, _, _ = name.rpartition("/")
    if not os.path.islink(path) and not (folder and os.path.islink(home / folder)):
        return path
    with suppress(OSError, RuntimeError):  # a circle of links
        if path.resolve().is_relative_to(home):
            return path
    return None


def _not_a_run(folder: Path) -> OvertError:
    if (folder / "hang").is_dir():  # the first thing a run makes
        return OvertError(
            f"{folder} has written nothing yet: the run still prepares data and model, or ended "
            "before its first step"
        )
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
        at = math.nan if moment is None else moment
        by_name, known = self.by_name, False
        for name, value in row.items():
            if name == "step" or name == "time":
                continue
            number = value if type(value) is float else number_of(value)
            if number is None:
                continue
            known = True
            curve = by_name.get(name)
            if curve is None:
                curve = by_name[name] = Curve()
            curve.steps.append(step)
            curve.times.append(at)
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
                session.last_step = step_of(event)
        self.events.append(event)

    def _begin(self, event: Row, moment: float, kind: str) -> None:
        first = (step_of(event) or 0) if kind == "resume" else 0
        # Steps beyond the checkpoint come again, and what belongs to them too.
        # A fresh start takes back all, marks of earlier resumes too.
        marks = ("resume", "finish") if kind == "resume" else ()
        self.events = [
            earlier
            for earlier in self.events
            if earlier["kind"] in marks or _step_or_before(earlier) <= first
        ]
        known = ("time", "kind", "step")
        environment = {key: value for key, value in event.items() if key not in known}
        self.sessions.append(Session(moment, moment, first, environment))


def _step_or_before(event: Mapping[str, Any]) -> int:
    """Return the step of an event; one without a step was before them all."""
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
        longer = last >= session.begin and last > session.end
        extended.append(replace(session, end=last) if longer else session)
    return extended


def read_pictures(home: Path, events: list[Row]) -> list[Picture]:
    """Pictures in the order of their names and steps; what lies outside the folder is ignored."""
    pictures: dict[tuple[str, int | None], Picture] = {}
    for event, path in _files_of(home, events, ("image", "video")):
        if _is_picture(path):
            name, step = str(event.get("name")), _step_or_before(event)
            caption = event.get("caption")
            caption = None if caption is None else str(caption)
            pictures[name, step] = Picture(name, step, path, caption)  # a later one replaces it
    drawn = home / "evaluation"
    for path in sorted(drawn.glob("*")) if drawn.is_dir() else ():
        if own_file(home, f"evaluation/{path.name}") is not None and _is_picture(path):
            name = f"evaluation/{path.stem}"
            pictures[name, None] = Picture(name, None, path)
    return sorted(
        pictures.values(),
        key=lambda picture: (picture.name, math.inf if picture.step is None else picture.step),
    )


def read_texts(home: Path, events: list[Row]) -> list[Sample]:
    """Texts in the order of their names and steps; what lies outside the folder is ignored."""
    texts: dict[tuple[str, int], Sample] = {}
    for event, path in _files_of(home, events, ("text",)):
        with suppress(OSError):
            if path.suffix == ".txt" and path.stat().st_size <= LARGEST_TEXT:
                name, step = str(event.get("name")), _step_or_before(event)
                texts[name, step] = Sample(name, step, path.read_text(errors="replace"))
    return sorted(texts.values(), key=lambda sample: (sample.name, sample.step))


def _files_of(home: Path, events: list[Row], kinds: tuple[str, ...]) -> Iterator[tuple[Row, Path]]:
    """Return events that name a file, and the files; none outside of the folder."""
    for event in events:
        if event["kind"] in kinds:
            with suppress(OSError, ValueError):  # a name that no file system takes
                path = (home / str(event.get("path"))).resolve()
                if path.is_relative_to(home) and path.is_file():
                    yield event, path


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES + VIDEOS and path.is_file()


def read_scores(text: str) -> dict[str, float]:
    """Return the scores that `overt evaluate` wrote, where it did."""
    try:
        scores = json.loads(text)["scores"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(scores, dict):
        return {}
    numbers = {str(name): number_of(value) for name, value in scores.items()}
    return {name: value for name, value in numbers.items() if value is not None}
