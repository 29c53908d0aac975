"""Warnings of a run, written down by every process in which they come up.

The console shows those of the main process; loader processes and other ranks have none of their
own in the run folder otherwise, and a file that one of them could not read would be named nowhere.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path


class WarningFile(logging.Handler):
    """Appends warnings to a file, made with the first one; a disk that fails stops nothing."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {self.format(record)}\n"
        with suppress(OSError):  # it is on the console as well
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Opened anew each time: a rank and its loader processes write to the same file. Names
            # of files need not be text.
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(line)


def path_of(run_dir: Path, rank: int) -> Path:
    """Where a process and its loader processes write."""
    return run_dir / "warnings" / f"rank_{rank}.txt"


def note_in_loader(path: Path) -> None:
    """Write down what a loader process warns of; it is printed besides, as it was."""
    logger = logging.getLogger("overt")
    logger.addHandler(WarningFile(path))
    logger.addHandler(logging.StreamHandler())
