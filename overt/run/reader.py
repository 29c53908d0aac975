"""The one reader of JSON lines: the metrics and events of a run, also while they are written.

Whatever a file holds, reading it raises nothing but OSError: a line that is torn, not JSON, not
UTF-8, nested too deep or too long is skipped. Rows come one at a time, so that memory does not grow
with the file, and a `Follower` reads each byte once. Imports no torch.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

Row = dict[str, Any]

LONGEST_LINE = 2**24  # bytes; a row of a run has hundreds
LARGEST_STEP = 2**53  # beyond it a float counts no longer in ones
SCAN = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
LATEST_TIME = 253_402_300_799.0  # the last second of the year 9999


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file; none where the file does not exist."""
    with Follower(path) as follower:
        yield from follower.rows()


class Follower:
    """Reads a file that grows: every call of `rows` continues where the one before ended."""

    def __init__(self, path: Path, tail_bytes: int | None = None) -> None:
        """`tail_bytes`: begin so far before the end of the file, at a line."""
        self.path = path
        self.offset = 0  # bytes read so far
        self._tail_bytes = tail_bytes
        self._in_long_line = False
        # Kept open: the number of an open file is not given to the one that replaces it.
        self._file: BinaryIO | None = None

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forget the file; the next read begins at its start."""
        if self._file is not None:
            self._file.close()
        self._file, self.offset, self._in_long_line = None, 0, False

    def was_replaced(self) -> bool:
        """Whether the path now leads to another file, or a shorter one, than at the last read.

        Earlier rows are then invalid, and the next read starts from the beginning.
        """
        if self._file is None:
            return False
        try:
            current = self.path.stat()
        except FileNotFoundError:
            self.close()
            return True
        opened = os.fstat(self._file.fileno())
        if (current.st_dev, current.st_ino) == (
            opened.st_dev,
            opened.st_ino,
        ) and current.st_size >= self.offset:
            return False
        self.close()
        return True

    def rows(self) -> Iterator[Row]:
        """Yield the rows that have been added since the last call.

        A last line that is not complete yet is left for the next call.
        """
        if self._file is None:
            if not self.path.is_file():
                return
            self._file = self.path.open("rb")
            if self._tail_bytes is not None:
                self.offset = _line_at(self._file, self._tail_bytes)
        self._file.seek(self.offset)
        while line := self._file.readline(LONGEST_LINE):
            complete = line.endswith(b"\n")
            if self._in_long_line or (not complete and len(line) == LONGEST_LINE):
                self._in_long_line = not complete
                self.offset += len(line)
                continue
            row = parse_row(line)
            # A row that ends with its brace is complete: no part of an object is an object.
            if not complete and row is None:
                return
            self.offset += len(line)
            if row is not None:
                yield row


def _line_at(file: BinaryIO, tail_bytes: int) -> int:
    """Return the offset of the first line within the last bytes of a file."""
    start = os.fstat(file.fileno()).st_size - tail_bytes
    if start <= 0:
        return 0
    file.seek(start - 1)
    file.readline(LONGEST_LINE)
    return file.tell()


def parse_row(line: bytes) -> Row | None:
    """Return the object of one line; None where it is not one."""
    try:
        text = line.decode().strip()
        row, end = SCAN(text, 0)  # what json.loads does, less its guess of the encoding
        if end != len(text):
            return None
        if b"\\ud" in line:  # half of a pair of surrogates can be read, but never printed
            row = json.loads(json.dumps(row, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError, StopIteration):
        return None
    return row if isinstance(row, dict) else None


def number_of(value: object) -> float | None:
    """A logged number; NaN and Inf are written as strings. None: not a number a float can hold."""
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None


def count_of(value: object) -> int | None:
    """Return a whole number such as a step; None where it is negative or absurdly large."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= LARGEST_STEP else None


def step_of(row: Mapping[str, Any]) -> int | None:
    """Return the step of a row or event, where it has one."""
    return count_of(row.get("step"))


def time_of(row: Mapping[str, Any]) -> float | None:
    """Return when a row was written, in seconds since 1970; None if it is not a valid time."""
    seconds = number_of(row.get("time"))
    if seconds is None or math.isnan(seconds) or not 0 <= seconds <= LATEST_TIME:
        return None
    return seconds
