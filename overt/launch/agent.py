"""torchrun on one node: `python -m overt.launch.agent NOTES EXIT_CODE TORCHRUN-ARGUMENTS...`

It is torchrun, but that it ends with EXIT_CODE where it was asked to stop and all its processes
have saved. Under srun that must be 0, so that no other node is killed while it still saves.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from overt.launch.stopping import clear_notes, have_all_left, leave_at_signals


def main(arguments: Sequence[str]) -> int:
    notes, exit_code, words = Path(arguments[0]), int(arguments[1]), list(arguments[2:])
    clear_notes(notes)
    leave_at_signals(notes, exit_code)
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
