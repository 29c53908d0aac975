"""overt/tools/launch/stopping.py: notes of workers that were asked to stop."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overt.tools.launch.stopping import clear_notes, have_all_left, write_note


def test_notes_are_those_of_a_nodes_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    for node, rank in (("0", "0"), ("0", "1"), ("1", "0")):
        monkeypatch.setenv("SLURM_NODEID", node)
        monkeypatch.setenv("LOCAL_RANK", rank)
        write_note(notes)
    assert have_all_left(notes, 1)
    assert not have_all_left(notes, 2)  # node 1 has one note
    clear_notes(notes)
    assert not have_all_left(notes, 1)
    monkeypatch.setenv("SLURM_NODEID", "0")
    assert have_all_left(notes, 2)


EARLY = """
import os, signal, sys
from pathlib import Path
from overt.tools.launch.stopping import leave_at_signals
leave_at_signals(Path(sys.argv[1]), exit_code=0)
os.kill(os.getpid(), getattr(signal, sys.argv[2]))
signal.pause()
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_before_the_training_listens_leaves_a_note_too(name: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    command = [sys.executable, "-c", EARLY, str(notes), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0
    assert f"{name} before the first step" in done.stdout
    assert len(os.listdir(notes)) == 1
