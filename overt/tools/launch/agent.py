"""torchrun on one node: `python -m overt.tools.launch.agent NOTES EXIT_CODE TORCHRUN-ARGUMENTS...`

It is torchrun, but that it ends with EXIT_CODE where it was asked to stop and all its processes
have saved. Under srun that must be 0, so that no other node is killed while it still saves. And
processes that it starts again meet in a new store.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from overt.tools.launch.stopping import clear_notes, have_all_left, leave_at_signals


def main(arguments: Sequence[str]) -> int:
    notes, exit_code, words = Path(arguments[0]), int(arguments[1]), list(arguments[2:])
    clear_notes(notes)
    leave_at_signals(notes, exit_code)
    # Else torch keeps one for all restarts, where a process may find the address of one that is
    # gone before the new one has written its own: that start fails, and costs another restart.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # Imported late: importing torch takes seconds, in which a signal must not go wrong.
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException

    code = 0
    try:
        run.main(words)
    except SignalException as stopped:
        code = 128 + int(stopped.sigval)
    processes = int(run.parse_args(words).nproc_per_node)  # type: ignore[no-untyped-call]
    return exit_code if have_all_left(notes, processes) else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
