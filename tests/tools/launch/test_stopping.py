"""overt/tools/launch/stopping.py, worker.py, agent.py: a note instead of an exit code."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from toy_runs import TOY

from overt.errors import PREEMPTED_EXIT_CODE
from overt.tools.launch import agent, worker
from overt.tools.launch.stopping import clear_notes, have_all_left, write_note


@pytest.fixture
def restored_signals() -> object:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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


@pytest.mark.parametrize(
    ("code", "expected", "noted"), [(0, 0, False), (1, 1, False), (PREEMPTED_EXIT_CODE, 0, True)]
)
@pytest.mark.usefixtures("restored_signals")
def test_a_worker_that_saved_leaves_a_note_and_ends_well(
    code: int, expected: int, noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overt.train.main", lambda words: code)
    assert worker.main([str(tmp_path / "notes"), "recipe=x"]) == expected
    assert (tmp_path / "notes").exists() == noted


@pytest.mark.usefixtures("restored_signals")
def test_a_worker_passes_its_words_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--package", str(TOY), "recipe=toy", "training.num_stps=1"]
    assert worker.main([str(tmp_path / "notes"), *words]) == 1
    assert "did you mean training.num_steps?" in capsys.readouterr().err


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
