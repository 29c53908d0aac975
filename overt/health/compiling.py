"""Compiler processes: they survive a signal to the whole job, and never delay the exit.

Triton's kernels are compiled in worker processes that torch keeps for the whole run, C++ in one
process per file. Launchers and Slurm signal all processes of a job. Torch waits indefinitely for
the answer of a dead worker, and a dead C++ compiler is an error: either way the run would not save.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from torch._dynamo.callback import callback_handler

from overt.health.preemption import blocked

_thread = threading.local()  # a signal mask belongs to one thread


def spare_compilers() -> None:
    """Keep signals that stop a run from all processes that torch starts while it compiles.

    They inherit the signal mask, and so do the processes that they start.
    """
    if _begin not in callback_handler.start_callbacks:  # torch.compiler.reset() removes them
        callback_handler.register_start_callback(_begin)
        callback_handler.register_end_callback(_end)


def _begin(_: Any) -> None:
    _thread.mask = ExitStack()
    _thread.mask.enter_context(blocked())


def _end(_: Any) -> None:
    # By now torch has registered its own exit function. The last one registered runs first.
    atexit.unregister(end_compilers)
    atexit.register(end_compilers)
    mask: ExitStack | None = getattr(_thread, "mask", None)
    if mask is not None:
        mask.close()


def end_compilers() -> None:
    """Kill workers that still compile when this process exits: nobody needs the result.

    Torch's own exit function would wait up to five minutes for them.
    """
    for pool in getattr(sys.modules.get("torch._inductor.async_compile"), "_pool_set", ()):
        if getattr(pool, "pending_futures", None):
            server = pool.process.pid
            for process in [server, *_children(server)]:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def _children(process: int) -> list[int]:
    """Return the process ids of direct children; empty where the system does not list them."""
    with suppress(OSError):
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
        return [int(child) for child in text.split()]
    return []
