"""How a process tells its launcher that it was asked to stop, has saved, and left.

An exit code cannot say it: at the first code that is not 0, torchrun and `srun --kill-on-bad-exit`
end the processes that are still saving, torchrun starts them all again, and its own code is 1
whatever theirs were. So each process leaves a note, an empty file, and exits with 0.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

from overt.health.preemption import stopping_signals


def write_note(notes: Path) -> None:
    """Leave a note that this process has saved and exits."""
    notes.mkdir(parents=True, exist_ok=True)
    local_rank = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID", "0")
    (notes / f"{_node()}.{local_rank}").touch()


def clear_notes(notes: Path) -> None:
    """Remove the notes of an earlier session on this node."""
    for path in notes.glob(f"{_node()}.*"):
        path.unlink()


def have_all_left(notes: Path, processes: int) -> bool:
    """Return whether every one of this node's processes has left its note."""
    return all((notes / f"{_node()}.{rank}").exists() for rank in range(processes))


def leave_at_signals(notes: Path, exit_code: int) -> None:
    """End the process at a signal, as long as training has nothing to save yet."""

    def leave(number: int, frame: FrameType | None) -> None:
        print(f"{signal.Signals(number).name} before the first step: nothing to save", flush=True)
        write_note(notes)
        os._exit(exit_code)  # imports are under way: nothing may run after this

    for number in stopping_signals():
        signal.signal(number, leave)


def _node() -> str:
    return os.environ.get("SLURM_NODEID", "0")
