"""overt/tools/launch/local.py: detached trainings, told from other processes, asked to save."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from overt.errors import LaunchError
from overt.tools.launch.local import (
    LOG,
    RECORD,
    Started,
    identify,
    is_running,
    read,
    start,
    stop,
    training_command,
)

WAITS = [sys.executable, "-c", "print('here', flush=True); import signal; signal.pause()"]
SAVES = """
import signal, sys
def save(number, frame):
    print("saved", flush=True)
    sys.exit(85)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    signal.pause()
"""


def wait_for_line(log: Path, line: str) -> None:
    with subprocess.Popen(["tail", "-n", "+1", "-F", log], stdout=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        assert any(line in text.decode() for text in tail.stdout)
        tail.kill()


def test_a_training_is_detached_logged_and_stopped_by_sigterm(tmp_path: Path) -> None:
    started = start(tmp_path / "run", [sys.executable, "-c", SAVES])
    assert os.getsid(started.pid) == started.pid  # a closed terminal does not reach it
    assert read(tmp_path / "run") == started
    wait_for_line(tmp_path / "run" / LOG, "ready")
    assert is_running(started)
    assert stop(started, seconds=60)
    assert not is_running(started)
    assert (tmp_path / "run" / LOG).read_text() == "ready\nsaved\n"
    assert stop(started, seconds=60)  # stopping it again is no error


def test_a_run_is_not_trained_twice_at_a_time(tmp_path: Path) -> None:
    started = start(tmp_path, WAITS)
    try:
        with pytest.raises(LaunchError, match=f"by process {started.pid} already"):
            start(tmp_path, WAITS)
    finally:
        assert stop(started, seconds=60)
    again = start(tmp_path, WAITS)
    assert stop(again, seconds=60)


def test_a_process_that_got_the_number_of_an_old_one_is_left_alone(tmp_path: Path) -> None:
    other = start(tmp_path, WAITS)
    old = replace(other, identity="another boot 1")
    assert not is_running(old)
    assert stop(old, seconds=60)
    assert is_running(other)  # untouched
    assert stop(other, seconds=60)


def test_a_training_that_takes_too_long_to_save_is_reported(tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True)\n"
    started = start(tmp_path, [sys.executable, "-c", stubborn + "signal.pause()"])
    wait_for_line(tmp_path / LOG, "ready")
    try:
        assert not stop(started, seconds=0)
        assert is_running(started)  # nothing is killed that may still be saving
    finally:
        os.kill(started.pid, 9)


def test_another_machine_is_asked_there(tmp_path: Path) -> None:
    started = start(tmp_path, WAITS)
    with pytest.raises(LaunchError, match="was started on elsewhere"):
        is_running(replace(started, host="elsewhere"))
    assert stop(started, seconds=60)


def test_a_run_that_was_started_on_another_machine_may_continue_here(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text(json.dumps(asdict(Started(1, "boot 1", "elsewhere", []))))
    here = start(tmp_path, WAITS)
    assert stop(here, seconds=60)
    assert read(tmp_path) == here


def test_what_is_started_in_a_run_is_not_stopped_in_a_copy_of_its_folder(tmp_path: Path) -> None:
    here = start(tmp_path / "run", WAITS)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert read(tmp_path / "copy") is None
    assert read(tmp_path / "run") == here
    assert stop(start(tmp_path / "copy", WAITS), seconds=60)
    assert is_running(here)
    assert stop(here, seconds=60)


def test_an_unreadable_record_says_what_to_do(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    for text in ("{", json.dumps({"pid": 1}), "[]"):
        (tmp_path / RECORD).write_text(text)
        with pytest.raises(LaunchError, match="remove it"):
            read(tmp_path)


def test_an_identity_is_of_one_process() -> None:
    assert identify(os.getpid()) == identify(os.getpid()) is not None
    assert identify(os.getpid()) != identify(1)
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert identify(ended.pid) is None


def test_one_process_needs_no_torchrun_and_several_get_one_that_knows_the_signal() -> None:
    alone = training_command(["recipe=x"], 1, Path("/notes"), 3, 120)
    assert alone == [sys.executable, "-m", "overt.train", "recipe=x"]
    several = training_command(["recipe=x"], 4, Path("/notes"), 3, 120)
    assert several[2:5] == ["overt.tools.launch.agent", "/notes", "85"]
    assert {"--standalone", "--nproc-per-node=4", "--max-restarts=3"} < set(several)
    assert several[-2:] == ["/notes", "recipe=x"]
