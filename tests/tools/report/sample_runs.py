"""Run folders as training writes them, small and of known content, made by the real logger."""

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overt.run import trackers
from overt.run.log import MetricsLogger

CONFIG = """\
exp_name: {name}
recipe: {{name: probe}}
training: {{num_steps: 40, num_epochs: null}}
optimizer: {{lr: {lr}}}
logging: {{every_steps: 2}}
checkpoint: {{metric_name: score, mode: max}}
"""

EVIL = "</script><script>alert('\"&')</script><img src=x onerror=alert(1)>"


class Clock:
    """Stands in for the module `time` of the trackers: every look is ten seconds later."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self.now = start

    def time(self) -> float:
        self.now += 10
        return self.now


def write(folder: Path, events: list[Any], rows: list[Any] = (), config: str = "") -> Path:  # type: ignore[assignment]
    """A run folder with these lines in its logs."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("events.jsonl", events), ("metrics.jsonl", rows)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.yaml").write_text(config)
    return folder


def write_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lr: str = "0.001", extra: str = "extra"
) -> Path:
    """A run of 40 steps: killed at step 20, resumed at 10, with a skipped step and a NaN."""
    monkeypatch.setattr(trackers, "time", Clock())
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG.format(name=folder.name, lr=lr))
    command = f"/somewhere/overt/train.py recipe=probe exp_name={folder.name}"
    (folder / "command.txt").write_text(f"2026-01-01 10:00:00  {command}\n")
    session(folder, None, range(2, 21, 2), lr=float(lr), extra=extra)
    logger = session(folder, 10, range(12, 41, 2), lr=float(lr), extra=extra)
    logger.finish()
    return folder


def session(
    folder: Path, resume_step: int | None, steps: range, *, lr: float, extra: str
) -> MetricsLogger:
    logger = MetricsLogger("probe", folder, None, False, False, resume_step=resume_step)
    rng = np.random.default_rng(0)
    for step in steps:
        if step == 14:
            logger.log_event("skipped_step", step=step, module="encoder.0 (Linear, forward)")
        loss = math.nan if step == 14 else 2.0 / step + lr
        numbers: dict[str, Any] = {
            "loss": loss, "lr": lr, "epoch": step / 10, extra: 1.0, "samples_per_second": 80.0,
            "seconds_per_step": 0.5, "data_wait_share": 0.1, "token_std": 0.9, "token_rank": 12.0,
            "skipped_steps": float(step >= 14),
        }  # fmt: skip
        logger.log_metrics(numbers, step, "train")
        if step % 10 == 0:
            logger.log_metrics({"score": step / 100}, step, "evaluation")
            logger.log_image("tracks", np.full((3, 8, 12), step * 6, np.uint8), step)
            logger.log_video("film", rng.integers(0, 255, (3, 3, 8, 12), np.uint8), step)
            logger.log_histogram("weights/encoder", rng.normal(size=50), step)
    return logger


def write_evil_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in which everything that is text tries to be markup."""
    write_run(folder, monkeypatch, extra=EVIL)
    text = json.dumps(EVIL)
    (folder / "config.yaml").write_text(
        CONFIG.format(name="evil", lr="0.001") + f"mine: {text}\n{text}: 1\n"
    )
    (folder / "command.txt").write_text(f"{EVIL}  {EVIL}\n")
    with (folder / "events.jsonl").open("a") as file:
        event = {"time": 1.8e9, "kind": EVIL, "step": EVIL, EVIL: EVIL}
        file.write(json.dumps(event) + "\n")
    session(folder, 40, range(42, 44), lr=0.1, extra=EVIL).log_image(EVIL, [[1.0]], 44, EVIL)
    return folder


def write_checkpoint(run: Path, step: int, value: float, name: str = "score") -> Path:
    """A checkpoint folder with as much of a manifest as says that it is the best."""
    folder = run / "checkpoints" / f"step_{step:08d}"
    folder.mkdir(parents=True)
    manifest = {"step": step, "serial": step, "metric_name": name, "metric": value, "is_best": True}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


class Reader(HTMLParser):
    """Tags with their attributes, and the text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.data = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._inside = tag if tag in ("script", "style") else self._inside
        if tag == "script":
            self._inside = dict(attributes).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag in ("script", "style") else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data += data
        elif not self._inside:
            self.words += data
