"""overt/tools/proof/processes.py: groups of processes, their exit codes and their deadline."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from overt.tools.proof.processes import Group


def end_with(code: int) -> int:
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
    return code


def wait_forever(ready: Path, name: str) -> int:
    (ready / name).touch()
    while True:
        time.sleep(0.05)


def test_exit_codes_come_by_rank_and_all_that_was_printed_is_in_the_log(tmp_path: Path) -> None:
    group = Group(end_with, [(0,), (3,)], tmp_path / "log")
    ended = group.wait(deadline=120)
    assert (ended.codes, ended.late) == ([0, 3], [])
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    assert not group.send(0, signal.SIGTERM)  # it has ended


def refuse() -> None:
    raise RuntimeError("not in this process")


class Refused:
    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return refuse, ()


def test_a_process_that_ends_before_it_prints_leaves_an_empty_log(tmp_path: Path) -> None:
    """Such as one that imports a script whose calls are not guarded."""
    ended = Group(end_with, [(Refused(),)], tmp_path / "log").wait(deadline=120)
    assert ended.codes == [1]
    assert (tmp_path / "log").read_text() == ""


def test_a_signal_ends_one_and_grace_ends_the_others(tmp_path: Path) -> None:
    group = Group(wait_forever, [(tmp_path, "a"), (tmp_path, "b")], tmp_path / "log")
    deadline = time.monotonic() + 120
    while not ((tmp_path / "a").exists() and (tmp_path / "b").exists()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert group.send(1, signal.SIGTERM)
    ended = group.wait(deadline=120, grace=0.1)
    assert ended.codes == [-signal.SIGKILL, -signal.SIGTERM]
    assert ended.late == [0]


def test_who_is_alive_at_the_deadline_is_killed_and_named(tmp_path: Path) -> None:
    ended = Group(wait_forever, [(tmp_path, "a")], tmp_path / "log").wait(deadline=0.1)
    assert (ended.codes, ended.late) == ([-signal.SIGKILL], [0])


LEAK = """
import os, sys
from multiprocessing import resource_tracker
from overt.tools.proof.processes import start_quiet_tracker
if sys.argv[1] == "quiet":
    start_quiet_tracker()
    assert "PYTHONWARNINGS" not in os.environ
resource_tracker.register("/overt-leaked-in-a-test", "semaphore")
"""


@pytest.mark.parametrize("volume", ["quiet", "loud"])
def test_semaphores_of_killed_processes_are_not_warned_of(volume: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    ended = subprocess.run(
        [sys.executable, "-c", LEAK, volume],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert ("leaked semaphore" in ended.stderr) == (volume == "loud")
