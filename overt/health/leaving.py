"""The last moment of a process: what is saved must not be followed by an abort."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """Exit with `code`, once everything that is registered for the end of a process has run.

    Python's own exit takes the interpreter down while daemon threads still run. One that returns
    from C++ at that moment, such as a query to the store of the process group, aborts the process
    ("terminate called without an active exception", exit code 134). A launcher would take a run
    that has saved everything for a crashed one, and restart it.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the exit would
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads, or it is closed
            stream.flush()
    os._exit(code)
