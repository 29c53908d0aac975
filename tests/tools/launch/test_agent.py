"""overt/tools/launch/agent.py: torchrun, which ends by what its workers noted."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from overt.tools.launch import agent
from overt.tools.launch.stopping import write_note


@pytest.mark.parametrize(
    ("note", "raises", "expected"),
    [
        (False, False, 0),  # trained to the end
        (True, False, 7),  # a worker was asked to stop, torchrun was not
        (True, True, 7),  # both were
        (False, True, 128 + signal.SIGTERM),  # ended before it saved
    ],
)
@pytest.mark.usefixtures("restored_signals")
def test_an_agent_ends_by_what_its_workers_noted(
    note: bool, raises: bool, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException

    notes = tmp_path / "notes"
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # is set otherwise, and stays
    write_note(notes)  # of an earlier session: does not count

    def torchrun(words: list[str]) -> None:
        if note:
            write_note(notes)
        if raises:
            raise SignalException("asked to stop", signal.SIGTERM)

    monkeypatch.setattr(run, "main", torchrun)
    assert agent.main([str(notes), "7", "--nproc-per-node=1", "-m", "x"]) == expected


@pytest.mark.long
def test_processes_that_are_started_again_meet_in_a_new_store(tmp_path: Path) -> None:
    """A real torchrun, whose worker fails at first."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\nfrom torch.distributed import rendezvous\n"
        "store, _, _ = next(rendezvous('env://'))\n"
        "print('found' if store.check(['address']) else 'empty', flush=True)\n"
        "store.set('address', 'of one that will be gone')\n"
        "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n"
    )
    words = ["--standalone", "--nproc-per-node=1", "--max-restarts=3", str(program)]
    done = subprocess.run(
        [sys.executable, "-m", "overt.tools.launch.agent", str(tmp_path / "notes"), "85", *words],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["empty", "empty"]


def test_workers_that_were_asked_to_stop_do_not_cost_torchrun_a_restart(tmp_path: Path) -> None:
    """A real torchrun, whose one worker is told to stop and not torchrun itself."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom overt.tools.launch import worker\nimport overt.train\n"
        "print('begins', flush=True)\novert.train.main = lambda words: 85\n"
        "sys.exit(worker.main(sys.argv[1:]))\n"
    )
    notes = str(tmp_path / "notes")
    words = ["--standalone", "--nproc-per-node=1", "--max-restarts=3", str(program), notes]
    done = subprocess.run(
        [sys.executable, "-m", "overt.tools.launch.agent", notes, "85", *words],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 85, done.stderr
    assert done.stdout.count("begins") == 1
