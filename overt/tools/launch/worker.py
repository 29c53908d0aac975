"""One training process below a launcher: `python -m overt.tools.launch.worker NOTES WORDS...`

It is `overt train WORDS`, but that a run which was asked to stop ends with 0 and a note.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from overt.errors import PREEMPTED_EXIT_CODE
from overt.health.leaving import leave
from overt.tools.launch.stopping import leave_at_signals, write_note


def main(arguments: Sequence[str]) -> int:
    notes, words = Path(arguments[0]), arguments[1:]
    leave_at_signals(notes, exit_code=0)
    from overt.train import main as train

    code = train(words)
    if code == PREEMPTED_EXIT_CODE:
        write_note(notes)
        return 0
    return code


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
