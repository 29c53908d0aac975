"""Progress of long work: reported by loops, shown by commands. Imports no torch.

A loop says how far it is by `report` or `each`. Commands show it by `shown`, training in its own
lines; without a listener it costs nothing.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO, TypeVar

Item = TypeVar("Item")
Listener = Callable[[str, int, int], None]  # what is done, how many are, of how many

LINE_SECONDS = 30.0  # between two lines of a log
DRAW_SECONDS = 0.1  # between two drawings on a terminal
CLEAR = "\r\x1b[K"

_listeners: list[Listener] = []
_is_inside = False  # a loop of `each`: of nested ones only the outermost reports
_is_expendable = False  # see `expendable`


def report(label: str, done: int, total: int) -> None:
    """Report that `done` of `total` are finished."""
    if _listeners:
        _listeners[-1](label, done, total)


def each(items: Sequence[Item], label: str) -> Generator[Item]:
    """Yield the items, and tell how many are finished; silent within another such loop."""
    global _is_inside
    if _is_inside or not _listeners:
        yield from items
        return
    _is_inside = True
    try:
        for done, item in enumerate(items):
            report(label, done, len(items))
            yield item
        report(label, len(items), len(items))
    finally:
        _is_inside = False


@contextmanager
def expendable() -> Iterator[None]:
    """Within, a signal that asks a run to stop ends the work at once: it is easily done again.

    Whatever is written must appear complete, or not at all.
    """
    global _is_expendable
    before, _is_expendable = _is_expendable, True
    try:
        yield
    finally:
        _is_expendable = before


def is_expendable() -> bool:
    """Return whether the work may be broken off anywhere."""
    return _is_expendable


@contextmanager
def told_to(listener: Listener) -> Iterator[None]:
    """Within, `report` calls this listener."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def shown(stream: TextIO | None = None) -> Iterator[None]:
    """Within, progress is a bar on a terminal, and now and then a line elsewhere."""
    bar = Bar(sys.stderr if stream is None else stream)
    with told_to(bar):
        try:
            yield
        finally:
            bar.close()


class Bar:
    """One line that is drawn over; it vanishes when the work is done."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._what = ""
        self._begin = self._last = clock()
        self._is_drawn = self._is_gone = False

    def __call__(self, label: str, done: int, total: int) -> None:
        if self._is_gone:
            return
        now = self._clock()
        if label != self._what or done == 0:  # a loop may run twice
            self._what, self._begin, self._last = label, now, now
            is_due = self._stream.isatty()
        else:
            interval = DRAW_SECONDS if self._stream.isatty() else LINE_SECONDS
            is_due = now - self._last >= interval
        if done >= total:
            self.close()
        elif is_due:
            self._last = now
            text = line(label, done, total, now - self._begin)
            if self._stream.isatty():
                text = CLEAR + text[: max(shutil.get_terminal_size().columns - 1, 1)]
                self._is_drawn = True
            else:
                text += "\n"
            self._write(text)

    def close(self) -> None:
        """Erase the line."""
        if self._is_drawn:
            self._is_drawn = False
            self._write(CLEAR)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal was closed; the work continues
            self._is_gone = True


def line(label: str, done: int, total: int, seconds: float) -> str:
    """Return the work on one line: how much of it is done, and how long the rest takes."""
    left = f"  {duration(seconds / done * (total - done))} left" if done else ""
    return f"{label} {meter(done / total if total else 1.0)} {done:,} of {total:,}{left}"


def meter(fraction: float, width: int = 20) -> str:
    """Return a fraction as a bar of text."""
    filled = round(min(max(fraction, 0.0), 1.0) * width)
    return f"[{'=' * filled}{' ' * (width - filled)}]"


def duration(seconds: float) -> str:
    """Return seconds as 0:42 or 1:02:03."""
    total_seconds = round(seconds)
    minutes = f"{total_seconds % 3600 // 60:02d}:{total_seconds % 60:02d}"
    return (
        f"{total_seconds // 3600}:{minutes}" if total_seconds >= 3600 else minutes.removeprefix("0")
    )
