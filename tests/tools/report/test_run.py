"""overt/tools/report/run.py: status, length, time left and best score of a run."""

import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sample_runs import write

from overt.tools.report.reading import open_run

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
    assert run.seconds_left == 500.0
    unknown = open_run(write(tmp_path / "unknown", [START], rows))
    assert unknown.total_steps is None
    assert math.isnan(unknown.seconds_left)


def test_the_best_score_may_be_the_least_and_is_never_nan(tmp_path: Path) -> None:
    values = ["nan", 3.0, 1.0, 1.0]
    rows = [{"step": at, "time": 1.0, "evaluation/e": one} for at, one in enumerate(values)]
    config = "checkpoint: {metric_name: e, mode: min}"
    best = open_run(write(tmp_path / "a", [START], rows, config)).best
    assert best is not None
    assert (best.value, best.step) == (1.0, 2)
    assert open_run(write(tmp_path / "b", [START], rows[:1], config)).best is None


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
    assert math.isnan(run.seconds_left)
    assert run.status(now=2000.0) == "stopped"
