"""Warnings of a run, written by every process that emits them.

The console shows those of the main rank. Without these files a sample that a loader worker or
another rank could not read would be named nowhere in the run folder.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path


class WarningFile(logging.Handler):
    """Append warnings to a file, created with the first one; a failing disk stops nothing."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {self.format(record)}\n"
        with suppress(OSError):  # it is on the console as well
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Opened for each line: a rank and its loader workers write to the same file. File
            # names need not be valid text.
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(line)


def record_in_loader(path: Path) -> None:
    """Write a warning of a loader worker, which is still printed as well."""
    logger = logging.getLogger("overt")
    logger.addHandler(WarningFile(path))
    logger.addHandler(logging.StreamHandler())
