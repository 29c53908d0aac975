"""What a terminal shows beyond plain text: color and aligned columns. Imports no torch.

Color only where a person reads it: on a terminal, and not where NO_COLOR is set (no-color.org).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
STATUS = {"finished": "green", "running": "cyan", "failed": "red", "stopped": "yellow"}


def has_color(stream: TextIO | None = None) -> bool:
    """Whether text for this stream (default: stdout) may carry color."""
    stream = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def paint(text: str, color: str, stream: TextIO | None = None) -> str:
    """The text in a color of `CODES`, where the stream shows colors."""
    return f"\x1b[{CODES[color]}m{text}\x1b[0m" if text and has_color(stream) else text


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = (), gap: int = 2) -> list[str]:
    """Rows with their cells one below the other; columns named in `right` end at the same place.

    A row with fewer cells leaves the rest empty.
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
