"""Console output of a run: live lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import math
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from overt.distributed import is_main_process
from overt.progress import LINE_SECONDS, line, meter
from overt.run.time_left import RECENT, time_left
from overt.terminal import paint

GIB = 2**30
TICK_SECONDS = 0.2  # between two drawings of the step


class Console:
    """Progress and messages of the main process; silent on the others."""

    def __init__(
        self,
        total_steps: int = 0,
        *,
        stream: TextIO | None = None,
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_steps = total_steps  # known once the data is
        self._stream = sys.stdout if stream is None else stream
        self._enabled = enabled and is_main_process()
        self._live = self._enabled and self._stream.isatty()
        self._clock = clock
        self._drawn: list[str] = []  # the lines that the terminal shows now
        self._recent: deque[float] = deque(maxlen=RECENT)  # seconds per step
        self._head: list[str] = []  # parts of the first line after bar and step
        self._numbers: list[str] = []  # parts of the second line
        self._score = ""  # the newest of the metric that ranks checkpoints, and the best
        self._step = 0
        self._drawn_at = self._work_at = -math.inf
        self._work, self._work_begin = "", 0.0

    def update(
        self,
        step: int,
        epoch: float,
        fields: Mapping[str, float],
        *,
        seconds_per_step: float = math.nan,
        data_wait_share: float = math.nan,
        samples_per_second: float = math.nan,
        memory_bytes: float = math.nan,
    ) -> None:
        """Show the progress of training; a rate that is still NaN is omitted."""
        self._step = step
        losses = [f"{name} {value:.4g}" for name, value in fields.items()]
        epochs, speed, eta, rest = f"epoch {epoch:.4g}", [], [], []
        if math.isfinite(samples_per_second):
            speed.append(f"{samples_per_second:.4g} samples/s")
        if math.isfinite(seconds_per_step):
            self._recent.append(seconds_per_step)
            eta.append(self._eta(self.total_steps - step))
        if math.isfinite(data_wait_share):
            rest.append(f"data wait {data_wait_share:.0%}")
        if math.isfinite(memory_bytes):
            rest.append(f"memory {memory_bytes / GIB:.2f} GiB")
        if not self._live:
            parts = [f"step {step}/{self.total_steps} {self._done():4.0%}", epochs, *losses]
            self._write("  ".join([*parts, *speed, *eta, *rest]) + "\n")
            return
        self._head = [*eta, *speed, epochs]
        self._numbers = [*losses, *reversed(rest)]
        self._work = ""
        self._draw()

    def tick(self, step: int) -> None:
        """Advance the step of the live lines, without reading from the device."""
        self._step = step
        if self._live and self._clock() - self._drawn_at >= TICK_SECONDS:
            self._work = ""
            self._draw()

    def working(self, label: str, done: int, total: int) -> None:
        """Show the progress of work between two steps, such as an evaluation."""
        now = self._clock()
        if not self._work or done == 0:
            self._work_begin = self._work_at = now
        text = line(label, done, total, now - self._work_begin)
        is_due = now - self._work_at >= (TICK_SECONDS if self._live else LINE_SECONDS)
        self._work = "" if done >= total else text
        if self._live and (is_due or done in (0, total)):
            self._work_at = now
            self._draw()
        elif not self._live and is_due and done < total:
            self._work_at = now
            self._write(text + "\n")

    def keep_score(self, text: str) -> None:
        """Show this among the numbers from now on."""
        self._score = text
        self._draw()

    def say(self, text: str) -> None:
        """Print a line; on a terminal the progress stays below it."""
        if not self._live:
            self._write(f"{text}\n")
            return
        self._write(f"{self._erasure()}{text}\n")
        self._drawn = []
        self._draw()

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Print names and values in two columns under a title."""
        width = max((len(name) for name, _ in rows), default=0)
        title = paint(title, "bold", self._stream)
        self.say("\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows)]))

    def close(self) -> None:
        """Leave the last progress lines on screen."""
        if self._drawn:
            self._work = ""
            self._draw()
            self._write("\n")
            self._drawn, self._head, self._numbers, self._score = [], [], [], ""
            self._live = False

    def handler(self) -> logging.Handler:
        """Return a handler that prints log records above the progress lines."""
        return _SayHandler(self)

    def _done(self) -> float:
        return self._step / self.total_steps if self.total_steps else 1.0

    def _eta(self, steps: int) -> str:
        left = time_left(steps, self._recent)
        span = f"{as_duration(left.fastest)} to {as_duration(left.slowest)}"
        varies = f" (speed varies: {span})" if left.varies else ""
        return f"ETA {as_duration(left.seconds)}{varies}"

    def _draw(self) -> None:
        """Redraw the live lines in place."""
        if not self._live or not (self._head or self._numbers or self._work or self._score):
            return
        # At least one column: without it, no line is left to color.
        columns = max(shutil.get_terminal_size().columns - 1, 1)
        lines = []
        if self._head:
            head = list(self._head)
            if self._recent and head[0].startswith("ETA"):
                head[0] = self._eta(self.total_steps - self._step)
            step = f"step {self._step}/{self.total_steps} {self._done():4.0%}"
            lines.append(fit([step, *head], self._done(), columns))
        lines.append(fit([*self._numbers, *([self._score] if self._score else [])], None, columns))
        lines.append(self._work[:columns])
        erasure = self._erasure()
        self._drawn, self._drawn_at = [text for text in lines if text], self._clock()
        self._write(erasure + "\n".join(self._colored(self._drawn)))

    def _colored(self, lines: list[str]) -> list[str]:
        return [paint(lines[0], "cyan", self._stream), *lines[1:]] if self._head else lines

    def _erasure(self) -> str:
        """Return the control sequence that erases the live lines."""
        up = len(self._drawn) - 1
        return "" if up < 0 else f"\r\x1b[{up}A\x1b[J" if up else "\r\x1b[J"

    def _write(self, text: str) -> None:
        if not self._enabled:
            return
        # A character that the terminal cannot encode becomes a question mark.
        encoding = self._stream.encoding or "utf-8"
        text = text.encode(encoding, "replace").decode(encoding)
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # The pipe or terminal was closed; training continues.
            self._enabled = False


class _SayHandler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        self._console.say(f"{paint(level, 'yellow', self._console._stream)}: {self.format(record)}")


def fit(parts: Sequence[str], done: float | None, columns: int) -> str:
    """The parts that fit into one line, none of them cut, with a bar where there is room."""
    if not parts:
        return ""
    columns_shown: list[str] = []
    for part in parts:
        if len("  ".join([*columns_shown, part])) > columns:
            break
        columns_shown.append(part)
    text = "  ".join(columns_shown) or parts[0][:columns]
    room = min(columns - len(text) - 4, 20)
    if done is None or len(columns_shown) < len(parts) or room < 5:
        return text
    return f"{columns_shown[0]} {meter(done, room)}{text[len(columns_shown[0]) :]}"


def as_duration(seconds: float) -> str:
    """Return seconds as 1:02:03, with days where there are any."""
    total_seconds = math.ceil(seconds)
    days, remainder = divmod(total_seconds, 86_400)
    clock = f"{remainder // 3600}:{remainder % 3600 // 60:02d}:{remainder % 60:02d}"
    return f"{days}d {clock}" if days else clock
