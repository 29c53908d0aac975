"""Rows of logs that are too large to read: samples over their length, and the rows that matter.

A log of a million rows is shown by some thousands of them. Memory does not grow with the file, and
neither a sparse file nor a line without end holds up the reader. Imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from overt.run.reader import LONGEST_LINE, Row, parse_row

WHOLE_BYTES = 2**22  # of all runs of a command together: up to this size everything is read
TAIL_BYTES = 2**18  # at the end of a larger log, read in full
SAMPLES = 2000  # rows of a larger log, of all runs together
LONGEST_SAMPLE = 2**16  # bytes; a longer row is not sampled
MOST_SCANNED = 2**30  # bytes at the end of a log that are searched for rows that matter
MOST_ROWS = 5000  # of those
CHUNK_BYTES = 2**22
BRIEF_BYTES = 2**11  # at the end of a log, for a line about a run
BRIEF_ROWS = 6

SCORES = (b'"evaluation/',)
SESSIONS = (b'"kind": "start"', b'"kind": "resume"', b'"kind": "finish"')


def rows_before(path: Path, end: int, words: Sequence[bytes], samples: int) -> list[Row]:
    """Return samples of the rows before offset `end`, and those with one of `words`, in order.

    Of more than `MOST_ROWS` with a word, evenly spaced ones.
    """
    rows: dict[int, Row] = {}
    with path.open("rb") as opened:
        # In memory, where that is little, a seek costs nothing.
        file: BinaryIO = BytesIO(opened.read(end)) if end <= CHUNK_BYTES else opened
        for offset, line in _sampled(file, end, samples):
            row = parse_row(line)
            if row is not None:
                rows[offset] = row
        matches: list[tuple[int, bytes]] = []
        every = 1  # the interval of rows with a word that are kept
        candidates = _with_words(file, max(end - MOST_SCANNED, 0), end, words)
        for number, match in enumerate(candidates):
            if number % every == 0:
                matches.append(match)
            if len(matches) > MOST_ROWS:  # thinned over the whole length, never cut off
                matches, every = matches[::2], 2 * every
        for offset, line in matches:
            row = parse_row(line)
            if row is not None:
                rows[offset] = row
    return [rows[offset] for offset in sorted(rows)]


def _sampled(file: BinaryIO, end: int, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield lines at even distances, with their offsets; the first one of the file among them."""
    for index in range(count):
        start = end * index // count
        file.seek(max(start - 1, 0))
        if start > 0 and not file.readline(LONGEST_SAMPLE).endswith(b"\n"):
            continue
        offset = file.tell()
        line = file.readline(LONGEST_SAMPLE)
        if line.endswith(b"\n") and offset + len(line) <= end:
            yield offset, line


def _with_words(
    file: BinaryIO, begin: int, end: int, words: Sequence[bytes]
) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with one of `words`, with their offsets; `begin` may be within a line."""
    file.seek(begin)
    partial_line = b""
    while begin < end:
        block = partial_line + file.read(min(CHUNK_BYTES, end - begin - len(partial_line)))
        if len(block) == len(partial_line):
            return
        line_end = block.rfind(b"\n") + 1
        if line_end == 0:  # a line without end: nothing of it matters
            begin, partial_line = begin + len(block), b""
            continue
        for word in words:
            at = block.find(word, 0, line_end)
            while at >= 0:
                first, last = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
                yield begin + first, block[first:last]
                at = block.find(word, last, line_end)
        begin, partial_line = begin + line_end, block[line_end:]


def tail_with_rows(path: Path, size: int) -> int:
    """Return how many bytes at the end of a log hold its last few rows; rows may be long."""
    tail = BRIEF_BYTES
    while tail < min(size, LONGEST_LINE):
        with path.open("rb") as file:
            file.seek(size - tail)
            if file.read(tail).count(b"\n") > BRIEF_ROWS:
                break
        tail *= 4
    return tail


def size_of(path: Path) -> int:
    """Return the size of a file; 0 where it does not exist."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
