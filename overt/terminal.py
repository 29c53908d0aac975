"""What a terminal shows beyond plain text: color and aligned columns. Imports no torch.

Color is for terminals: NO_COLOR disables it (no-color.org), FORCE_COLOR enables it in pipes too;
if both are set, NO_COLOR wins, as in Python's own tracebacks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
STATUS = {"finished": "green", "running": "cyan", "failed": "red", "stopped": "yellow"}


def has_color(stream: TextIO | None = None) -> bool:
    """Return whether to color text for this stream (default: stdout)."""
    stream = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    if os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def paint(text: str, color: str, stream: TextIO | None = None) -> str:
    """Return the text in a color of `CODES`, unchanged if the stream has no color."""
    return f"\x1b[{CODES[color]}m{text}\x1b[0m" if text and has_color(stream) else text


def tell(text: str) -> None:
    """Print to stderr. A terminal or pipe that was closed hears nothing, and fails nothing."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = (), gap: int = 2) -> list[str]:
    """Return aligned lines; columns listed in `right` are right-aligned.

    Missing cells at the end of a row are empty.
    """
    count = max(map(len, rows), default=0)
    full = [[*row, *[""] * (count - len(row))] for row in rows]
    widths = [max(len(row[index]) for row in full) for index in range(count)]
    lines = []
    for row in full:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((" " * gap).join(cells).rstrip())
    return lines
