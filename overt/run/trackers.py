"""Destinations of logged values: files in the run folder, TensorBoard, Weights & Biases, others.

A tracker may raise anything; MetricsLogger catches it, so that no tracker stops a training run.
For your own destination write a class with the methods of `Tracker` that is made from a `Start`,
and name it in `logging.trackers` (docs/logging.md); overt/run/mlflow_tracker.py is one.
"""

from __future__ import annotations

import html
import io
import json
import math
import os
import re
import secrets
import textwrap
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overt.errors import STOPPED_EXIT_CODES

Pixels = NDArray[np.uint8]  # (H, W, 3)
Values = NDArray[np.floating[Any]]  # (N,) finite
LARGEST_BINNED = 9e19  # in a histogram of TensorBoard


class Tracker(Protocol):
    """The interface of a destination for logged values."""

    name: str

    def metrics(self, values: Mapping[str, float], step: int) -> None: ...

    def image(self, name: str, pixels: Pixels, step: int, caption: str | None) -> None: ...

    def video(self, name: str, gif: bytes, step: int) -> None: ...

    def histogram(self, name: str, values: Values, step: int) -> None: ...

    def close(self, exit_code: int) -> None: ...


@runtime_checkable
class TextTracker(Protocol):
    """A tracker that takes texts, too."""

    def text(self, name: str, text: str, step: int) -> None: ...


class Start(NamedTuple):
    """What a tracker gets when a session begins; on the main process only."""

    experiment_name: str
    log_dir: Path  # the run folder: a place to keep a run's id for the next session
    config: dict[str, Any]
    resume_step: int | None  # steps beyond it come again; None: the run starts from scratch


TrackerMaker = Callable[[Start], Tracker]


def usual_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values under the names that viewers group by: `train/loss`, `val/loss`.

    The run folder calls scores `evaluation/NAME`, whatever they are measured on.
    """
    return {usual_name(name, values): value for name, value in values.items()}


def usual_name(name: str, other_metrics: Mapping[str, Any] | None = None) -> str:
    """Return `val/NAME` for `evaluation/NAME`; others stay."""
    group, _, metric = name.partition("/")
    if group != "evaluation":
        return name
    short = metric.removeprefix("val_")
    return f"val/{metric if other_metrics and f'evaluation/{short}' in other_metrics else short}"


OWN_FIELDS = ("step", "time")  # of every row of metrics.jsonl


class RunFolder:
    """metrics.jsonl and events.jsonl, one JSON object per line; images and GIFs in pictures/."""

    name = "the run folder"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics_file = folder / "metrics.jsonl"
        self.error: str | None = None  # what the run ended with
        self.stopped_by: str | None = None  # who asked it to end
        self.last_step: int | None = None
        self._picture_names: dict[str, str] = {}  # who has the plain name of a file

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        append_line(self.metrics_file, {"step": step, "time": time.time(), **values})

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        append_line(self.folder / "events.jsonl", {"time": time.time(), "kind": kind, **fields})

    def image(self, name: str, pixels: Pixels, step: int, caption: str | None) -> None:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        self._picture("image", name, buffer.getvalue(), step, ".png", caption)

    def video(self, name: str, gif: bytes, step: int) -> None:
        self._picture("video", name, gif, step, ".gif", None)

    def text(self, name: str, text: str, step: int) -> None:
        self._picture("text", name, text.encode(errors="replace"), step, ".txt", None)

    def histogram(self, name: str, values: Values, step: int) -> None:
        spread = {"min": values.min(), "mean": values.mean(), "max": values.max()}
        spread["std"] = values.std()
        self.metrics({f"{name}/{key}": float(value) for key, value in spread.items()}, step)

    def close(self, exit_code: int) -> None:
        ending = {"step": self.last_step, "error": self.error, "stopped": self.stopped_by}
        fields = {name: value for name, value in ending.items() if value is not None}
        self.event("finish", {"exit_code": exit_code, **fields})

    def _picture(
        self, kind: str, name: str, data: bytes, step: int, suffix: str, caption: str | None
    ) -> None:
        stem = re.sub(r"[^\w.-]+", "_", name)
        # `night/x` and `night_x` are two pictures: all but the first get another name.
        if self._picture_names.setdefault(stem + suffix, name) != name:
            stem += f"_{zlib.crc32(name.encode(errors='replace')):08x}"
        path = self.folder / "pictures" / f"{stem}_{step:08d}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)
        relative = path.relative_to(self.folder).as_posix()
        self.event(kind, {"name": name, "step": step, "path": relative, "caption": caption})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of metrics.jsonl; a torn one, left by a crash, is skipped."""
        if not self.metrics_file.exists():
            return
        for line in self.metrics_file.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                yield row

    def cut_after(self, step: int) -> set[str]:
        """Remove the rows beyond `step`, at once or not at all; the names that `step` has."""
        rows_kept = [row for row in self.rows() if row["step"] <= step]
        if self.metrics_file.exists():
            lines = "".join(json.dumps(row) + "\n" for row in rows_kept).encode()
            replace_file(self.metrics_file, lines)
        return {name for row in rows_kept if row["step"] == step for name in row}

    def set_aside(self) -> None:
        """Keep the rows of an earlier start under another name: this start is from scratch."""
        if self.metrics_file.exists() and self.metrics_file.stat().st_size:
            number = 1
            while (older := self.folder / f"metrics.{number}.jsonl").exists():
                number += 1
            os.replace(self.metrics_file, older)


def binned(values: Values) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the counts of 64 bins and their 65 edges; of any finite values.

    Where the values are too close for as many separate edges, the bins reach beyond them.
    """
    values = values.clip(-1e307, 1e307)  # the distance of two values is finite as well
    low, high = float(values.min()), float(values.max())
    largest = max(abs(low), abs(high))
    if high - low <= max(1e-13 * largest, 1e-300):
        margin = max(1e-9 * largest, 0.5)
        low, high = low - margin, high + margin
    return np.histogram(values, bins=64, range=(low, high))


class TensorBoard:
    """Event files in one folder; what an earlier start wrote from `first_step` on is hidden."""

    name = "TensorBoard"

    def __init__(self, folder: Path, first_step: int, config: Mapping[str, Any] | None) -> None:
        from torch.utils.tensorboard import SummaryWriter  # seconds: only where it is used

        self._writer: Any = SummaryWriter(str(folder), purge_step=first_step)
        if config is not None:
            text = json.dumps(config, indent=2, default=str)
            self._writer.add_text("config", f"```json\n{text}\n```", first_step)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        # One record for all: add_scalar hands each to the writing thread, and waits for it.
        from tensorboard.compat.proto.summary_pb2 import Summary

        record = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in usual_names(values).items()
        ]
        self._writer.file_writer.add_summary(Summary(value=record), step)

    def image(self, name: str, pixels: Pixels, step: int, caption: str | None) -> None:
        self._writer.add_image(usual_name(name), pixels, step, dataformats="HWC")

    def video(self, name: str, gif: bytes, step: int) -> None:
        # add_video wants moviepy only to make the GIF that we have; the record is the same.
        from tensorboard.compat.proto.summary_pb2 import Summary

        with Image.open(io.BytesIO(gif)) as picture:
            width, height = picture.size
        record = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=gif)
        value = Summary.Value(tag=usual_name(name), image=record)
        self._writer.file_writer.add_summary(Summary(value=[value]), step)

    def text(self, name: str, text: str, step: int) -> None:
        # Indented, so that TensorBoard, which renders Markdown, shows it verbatim.
        self._writer.add_text(usual_name(name), textwrap.indent(text, "    ", lambda _: True), step)

    def histogram(self, name: str, values: Values, step: int) -> None:
        # Its bins end at 1e20: of values that are all beyond them it makes no histogram.
        self._writer.add_histogram(name, values.clip(-LARGEST_BINNED, LARGEST_BINNED), step)

    def close(self, exit_code: int) -> None:
        self._writer.close()


class WeightsAndBiases:
    """One run per run folder: its id is kept there and used again by every later start."""

    name = "Weights & Biases"

    def __init__(
        self,
        folder: Path,
        experiment_name: str,
        config: Mapping[str, Any] | None,
        project: str,
        entity: str | None,
        tags: Sequence[str],
        mode: str | None,
        run_id: str | None,
    ) -> None:
        import wandb  # an extra, and most of a second: only where it is used

        self._wandb: Any = wandb
        id_file = folder / "wandb_run_id"
        if id_file.exists():
            run_id = id_file.read_text().strip()
        self.run_id = run_id or secrets.token_hex(4)
        # Before the run exists: whatever happens from here on, the next start finds the id.
        replace_file(id_file, self.run_id.encode())
        self._run: Any = self._wandb.init(
            project=project,
            entity=entity,
            name=experiment_name,
            id=self.run_id,
            resume="allow",
            dir=str(folder),
            tags=list(tags),
            config=dict(config or {}),
            mode=mode,
            # Longer than this, a prompt for a key or a missing network does not delay training.
            settings=wandb.Settings(console="off", silent=True, login_timeout=30, init_timeout=30),
        )
        # Our own axis: W&B drops what is logged below its internal step, as after a resume.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self._log(usual_names(values), step)

    def image(self, name: str, pixels: Pixels, step: int, caption: str | None) -> None:
        self._log({usual_name(name): self._wandb.Image(pixels, caption=caption)}, step)

    def video(self, name: str, gif: bytes, step: int) -> None:
        self._log({usual_name(name): self._wandb.Video(io.BytesIO(gif), format="gif")}, step)

    def text(self, name: str, text: str, step: int) -> None:
        self._log({usual_name(name): self._wandb.Html(f"<pre>{html.escape(text)}</pre>")}, step)

    def histogram(self, name: str, values: Values, step: int) -> None:
        self._log({name: self._wandb.Histogram(np_histogram=binned(values))}, step)

    def close(self, exit_code: int) -> None:
        if exit_code in STOPPED_EXIT_CODES and hasattr(self._run, "mark_preempting"):
            self._run.mark_preempting()  # "preempted" instead of "failed": it will resume
        self._run.finish(exit_code=exit_code)

    def _log(self, values: Mapping[str, Any], step: int) -> None:
        self._run.log({**values, "step": step})


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append one JSON line atomically, visible to readers at once."""
    line = json.dumps(_plain(row), allow_nan=False, default=str).encode() + b"\n"
    with open(path, "a+b", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        if before > 0:
            file.seek(before - 1)
            if file.read(1) != b"\n":  # a process was killed within its last line
                line = b"\n" + line
        written = file.write(line)
        if written != len(line):
            file.truncate(before)
            raise OSError(
                f"only {written} of {len(line)} bytes could be written to {path}; is the disk full?"
            )


def _plain(value: Any) -> Any:
    """NaN and Inf are not JSON: as strings they stay readable, and float() takes them back."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves either the old one or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
