"""overt/tools/report/run.py: status, length, time left and best score of a run."""

import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sample_runs import write, write_checkpoint

from overt.tools.report import text
from overt.tools.report.reading import open_run
from overt.tools.report.run import Best

START = {"time": 1000.0, "kind": "start"}


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ({"exit_code": 0}, "finished"),
        ({"exit_code": 1}, "failed"),
        ({"exit_code": 1, "error": "DataError: broken"}, "failed"),
        ({"exit_code": 85, "stopped": "SIGTERM asked this run to stop"}, "stopped"),
        ({"exit_code": 130, "stopped": "KeyboardInterrupt"}, "stopped"),
        ({"exit_code": 1, "error": "Preempted: SIGTERM asked"}, "stopped"),
        ({"exit_code": 1, "error": "KeyboardInterrupt: "}, "stopped"),
    ],
)
def test_status_of_a_run_that_said_goodbye(
    tmp_path: Path, end: dict[str, Any], status: str
) -> None:
    finish = {"time": 1001.0, "kind": "finish", **end}
    assert open_run(write(tmp_path, [START, finish])).status() == status


def test_status_of_a_run_on_this_host_is_that_of_its_process(tmp_path: Path) -> None:
    here = {"host": socket.gethostname()}
    alive = write(tmp_path / "alive", [START | here | {"pid": os.getpid()}])
    assert open_run(alive).status() == "running"
    for pid in (dead_pid(), 0, -1, 10**400):
        dead = write(tmp_path / "dead", [START | here | {"pid": pid}])
        assert open_run(dead).status() == "stopped"


def test_status_of_a_run_elsewhere_follows_from_its_silence(tmp_path: Path) -> None:
    rows = [{"step": 1, "time": 1100.0, "train/seconds_per_step": 100.0}]
    far = START | {"host": "elsewhere", "pid": 1}
    run = open_run(write(tmp_path, [far], rows, "logging: {every_steps: 10}"))
    # Five log lines of ten steps of 100 seconds.
    assert run.status(now=1100 + 4999) == "running"
    assert run.status(now=1100 + 5001) == "stopped"
    quick = open_run(write(tmp_path, [far], [{"step": 1, "time": 1100.0, "a": 1.0}]))
    assert quick.status(now=1100 + 599) == "running"
    assert quick.status(now=1100 + 601) == "stopped"


def test_length_and_time_left_of_a_run_by_epochs(tmp_path: Path) -> None:
    rows = [
        {"step": 50, "time": 1.0, "train/epoch": 0.5, "train/seconds_per_step": 9.0},
        {"step": 100, "time": 2.0, "train/epoch": 1.0, "train/seconds_per_step": 2.0},
        {"step": 150, "time": 3.0, "train/epoch": 1.5, "train/seconds_per_step": 2.0},
    ]
    config = "training: {num_steps: null, num_epochs: 4}"
    run = open_run(write(tmp_path / "epochs", [START], rows, config))
    assert run.total_steps == 400
    assert run.time_left.seconds == pytest.approx(250 * 13 / 3)
    assert (run.time_left.fastest, run.time_left.slowest) == (500.0, 2250.0)
    assert text.left(run) == "8 min 20 s to 37 min 30 s, speed varies"
    unknown = open_run(write(tmp_path / "unknown", [START], rows))
    assert unknown.total_steps is None
    assert math.isnan(unknown.time_left.seconds)
    assert text.left(unknown) == "unknown"


def test_the_best_score_is_that_of_a_checkpoint_that_exists(tmp_path: Path) -> None:
    rows = [{"step": at, "time": 1.0, "evaluation/e": value} for at, value in ((0, 9.0), (5, 8.0))]
    config = "checkpoint: {metric_name: e, mode: max}"
    folder = write(tmp_path, [START], rows[:1], config)
    assert open_run(folder).best is None
    assert text.best(open_run(folder)) == "e 9 at 0 (initial)"
    write(tmp_path, [START], rows, config)
    assert text.best(open_run(folder)) == "e 8 at 5 (not saved)"
    write_checkpoint(folder, 5, 8.0, "e")
    assert open_run(folder).best == Best("e", 8.0, 5)
    assert text.best(open_run(folder)) == "e 8 at 5"


def test_the_step_is_that_of_the_end_where_nothing_was_logged_since(tmp_path: Path) -> None:
    finish = {"time": 1001.0, "kind": "finish", "exit_code": 85, "step": 7}
    rows = [{"step": 5, "time": 1.0, "a": 1.0}]
    assert open_run(write(tmp_path, [START, finish], rows)).step == 7


@pytest.mark.parametrize(
    "config",
    [
        "training: {num_steps: 1" + "0" * 400 + "}",
        "training: {num_steps: null, num_epochs: 1" + "0" * 400 + "}",
        "training: {num_steps: -4}",
        "training: {num_steps: null, num_epochs: 9007199254740992}",
        "logging: {every_steps: 1" + "0" * 400 + "}",
        "training: [1]\nlogging: 3",
    ],
)
def test_absurd_settings_cost_what_follows_from_them_only(config: str, tmp_path: Path) -> None:
    row = {"step": 5, "time": 1001.0, "train/epoch": 1e-320, "train/seconds_per_step": 1e308}
    run = open_run(write(tmp_path, [START | {"host": "elsewhere", "pid": 1}], [row], config))
    assert run.total_steps is None
    assert math.isnan(run.time_left.seconds)
    assert run.status(now=2000.0) == "stopped"
