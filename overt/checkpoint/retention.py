"""Which checkpoints of a run are the newest and the best, and which of the others are deleted."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from overt.checkpoint import storage
from overt.checkpoint.manifest import Stored, verify


class Retention:
    """Ranks the checkpoints of a folder, moves the links `latest` and `best`, prunes the others."""

    def __init__(
        self,
        directory: Path,
        metric_name: str | None,
        mode: str,
        keep_best_n: int,
        keep_last_n: int,
        also_best: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.metric_name = metric_name
        self.mode = mode
        self.sign = 1.0 if mode == "min" else -1.0
        self.keep_best_n = keep_best_n
        self.keep_last_n = keep_last_n
        self.also_best = tuple(also_best)  # further metrics: the best of each is kept
        self._metrics: dict[Path, dict[str, Any]] = {}  # of checkpoints, read once
        self.stored: list[Stored] = []  # oldest first; replaced, never changed: threads read it

    def read_disk(self) -> None:
        """Read the checkpoints on disk again."""
        self.stored, _ = storage.scan(self.directory)

    def add(self, checkpoint: Stored) -> None:
        """Count a checkpoint that has just been written as the newest."""
        self.stored = [*self.stored, checkpoint]
        self.move_pointers()

    def next_serial(self) -> int:
        """Return the number of the next save."""
        return self.stored[-1].serial + 1 if self.stored else 1

    def is_better(self, value: float, than: float | None) -> bool:
        """Tell whether `value` beats another; NaN never does, and any number beats none."""
        if math.isnan(value):
            return False
        return than is None or self.sign * value < self.sign * than

    def newest_complete(self) -> Path | None:
        """Return the newest checkpoint that is complete by names and sizes."""
        paths = (checkpoint.path for checkpoint in reversed(self.stored))
        return next((path for path in paths if is_complete(path)), None)

    def best(self) -> Stored | None:
        """Return the last one saved as best: it beat, or was declared to beat, all before it."""
        best: Stored | None = None
        for checkpoint in self.stored:
            if checkpoint.is_measured_by(self.metric_name, self.mode):
                wins = checkpoint.is_best
            elif checkpoint.metric_name == self.metric_name and checkpoint.metric is not None:
                # Saved when the other direction was the better one: only its value counts.
                wins = self.is_better(checkpoint.metric, None if best is None else best.metric)
            else:
                wins = False
            best = checkpoint if wins else best
        return best

    def ranking(self) -> list[Stored]:
        """Return what was measured by the metric, best first."""
        best = self.best()
        ranked = [
            (checkpoint is not best, self.sign * checkpoint.metric, checkpoint.serial, checkpoint)
            for checkpoint in self.stored
            if checkpoint.metric is not None
            and not math.isnan(checkpoint.metric)
            and checkpoint.metric_name == self.metric_name
        ]
        return [checkpoint for *_, checkpoint in sorted(ranked, key=lambda entry: entry[:3])]

    def best_by(self, name: str) -> Stored | None:
        """Return the checkpoint with the best value of a further metric, the first of equals."""
        values = [(self._metrics_of(stored).get(name), stored) for stored in self.stored]
        ranked = [
            (self.sign * value, stored.serial, stored)
            for value, stored in values
            if isinstance(value, int | float) and not math.isnan(value)
        ]
        return min(ranked, key=lambda entry: entry[:2])[2] if ranked else None

    def _metrics_of(self, stored: Stored) -> dict[str, Any]:
        if stored.path not in self._metrics:
            try:
                metrics = json.loads((stored.path / "state.json").read_text())["metrics"]
            except (OSError, ValueError, KeyError, TypeError):
                metrics = None
            self._metrics[stored.path] = metrics if isinstance(metrics, dict) else {}
        return self._metrics[stored.path]

    def move_pointers(self) -> None:
        """Point `latest`, `best` and `best_METRIC` to their checkpoints."""
        newest = self.stored[-1].path if self.stored else None
        best = self.best()
        storage.point(self.directory / "latest", newest)
        storage.point(self.directory / "best", None if best is None else best.path)
        for name in self.also_best:
            best = self.best_by(name)
            link = self.directory / f"best_{name.replace('/', '_')}"
            storage.point(link, None if best is None else best.path)

    def linked(self) -> set[Path]:
        """Return the checkpoints that a link names: `latest`, `best`, `best_METRIC` and others."""
        links = (path for path in self.directory.iterdir() if path.is_symlink())
        return {self.directory / Path(os.readlink(link)).name for link in links}

    def prune(self, protected: Collection[Path] = ()) -> list[Path]:
        """Hide the checkpoints that are neither new, nor good, nor pinned; the caller deletes."""
        keep = {checkpoint.path for checkpoint in self.stored[-self.keep_last_n :]}
        keep |= {checkpoint.path for checkpoint in self.ranking()[: self.keep_best_n]}
        keep |= {best.path for best in map(self.best_by, self.also_best) if best is not None}
        keep |= set(protected)
        superfluous = [
            checkpoint.path
            for checkpoint in self.stored
            if checkpoint.path not in keep and not storage.is_pinned(checkpoint.path)
        ]
        self.stored = [
            checkpoint for checkpoint in self.stored if checkpoint.path not in superfluous
        ]
        self.move_pointers()  # before their targets go: a pointer never dangles
        return [storage.hide(path) for path in superfluous]


def is_complete(path: Path) -> bool:
    """Tell whether a checkpoint has all its files in their sizes; their contents are not read."""
    return verify(path, contents=False).good
