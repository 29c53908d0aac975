"""What a person sees while a run trains: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import math
import shutil
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TextIO

from overt.distributed import is_main_process
from overt.run.time_left import RECENT, time_left

GIB = 2**30
CLEAR = "\r\x1b[K"


class Console:
    """Progress and messages of the main process; silent on the others."""

    def __init__(
        self, total_steps: int = 0, *, stream: TextIO | None = None, enabled: bool = True
    ) -> None:
        self.total_steps = total_steps  # known once the data is
        self._stream = sys.stdout if stream is None else stream
        self._enabled = enabled and is_main_process()
        self._live = self._enabled and self._stream.isatty()
        self._line = ""  # what the terminal shows now
        self._recent: deque[float] = deque(maxlen=RECENT)  # seconds per step

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
        """Show where training stands; a rate that is NaN is not known yet and left out."""
        done = step / self.total_steps if self.total_steps else 1.0
        parts = [f"step {step}/{self.total_steps} {done:4.0%}", f"epoch {epoch:.4g}"]
        parts += [f"{name} {value:.4g}" for name, value in fields.items()]
        if math.isfinite(samples_per_second):
            parts.append(f"{samples_per_second:.4g} samples/s")
        if math.isfinite(seconds_per_step):
            self._recent.append(seconds_per_step)
            left = time_left(self.total_steps - step, self._recent)
            parts.append(f"ETA {as_duration(left.seconds)}")
            if left.varies:
                span = f"{as_duration(left.fastest)} to {as_duration(left.slowest)}"
                parts[-1] += f" (speed varies: {span})"
        if math.isfinite(data_wait_share):
            parts.append(f"data wait {data_wait_share:.0%}")
        if math.isfinite(memory_bytes):
            parts.append(f"memory {memory_bytes / GIB:.2f} GiB")
        if not self._live:
            self._write("  ".join(parts) + "\n")
            return
        self._line = fit(parts, done, shutil.get_terminal_size().columns - 1)
        self._write(CLEAR + self._line)

    def say(self, text: str) -> None:
        """Print a line; on a terminal the progress line stays below it."""
        self._write(f"{CLEAR}{text}\n{self._line}" if self._live else f"{text}\n")

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Print names and values in two columns under a title."""
        width = max((len(name) for name, _ in rows), default=0)
        self.say("\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows)]))

    def close(self) -> None:
        """Leave the last progress line standing."""
        if self._line:
            self._write("\n")
            self._line = ""

    def handler(self) -> logging.Handler:
        """A handler that says log records, so that a warning does not tear the progress line."""
        return _SayHandler(self)

    def _write(self, text: str) -> None:
        if not self._enabled:
            return
        # A terminal without some letter gets a question mark for it.
        encoding = self._stream.encoding or "utf-8"
        text = text.encode(encoding, "replace").decode(encoding)
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # Whoever was watching has gone (closed pipe or terminal); training continues.
            self._enabled = False


class _SayHandler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.say(f"{record.levelname.lower()}: {self.format(record)}")


def fit(parts: Sequence[str], done: float, columns: int) -> str:
    """The parts that fit into one line, whole ones only, with a bar where there is room for it."""
    kept: list[str] = []
    for part in parts:
        if len("  ".join([*kept, part])) > columns:
            break
        kept.append(part)
    line = "  ".join(kept) or parts[0][:columns]
    room = min(columns - len(line) - 4, 20)
    if len(kept) < len(parts) or room < 5:
        return line
    filled = round(min(max(done, 0.0), 1.0) * room)
    return f"{kept[0]} [{'=' * filled}{' ' * (room - filled)}]{line[len(kept[0]) :]}"


def as_duration(seconds: float) -> str:
    """Seconds as 1:02:03, with days where there are any."""
    whole = math.ceil(seconds)
    days, rest = divmod(whole, 86_400)
    clock = f"{rest // 3600}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}d {clock}" if days else clock
