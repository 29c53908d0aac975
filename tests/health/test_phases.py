"""overt/health/phases.py: the log says what a start took its time for."""

import json
import re
import time
from pathlib import Path

import pytest
from toy_runs import train_toy

from overt.health.phases import Phases, process_start


def test_phases_add_up_to_the_time_since_the_process_began() -> None:
    began = time.monotonic() - 5.0
    phases = Phases(began)
    phases.end("imports")
    phases.end("group")
    assert list(phases.seconds) == ["imports", "group"]
    assert phases.seconds["imports"] >= 5.0
    assert sum(phases.seconds.values()) <= time.monotonic() - began
    assert str(phases).startswith(f"start took {sum(phases.seconds.values()):.1f} s: imports ")


def test_this_process_began_before_now() -> None:
    began = process_start()
    assert began is not None
    assert began < time.monotonic()


def test_a_run_says_its_phases_once_and_again_after_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["checkpoint.every_steps=4", "training.num_steps=8"]
    train_toy(tmp_path, *settings)
    said = capsys.readouterr().out
    names = ("data", "model", "load", "first batch", "first step")
    pattern = "start took [0-9.]+ s: " + ", ".join(rf"{name} [\d.]+" for name in names) + "\n"
    assert len(re.findall(pattern, said)) == 1
    more = ["training.num_steps=9", "checkpoint.accept_changes=[training.num_steps]"]
    train_toy(tmp_path, *settings[:1], *more)
    rows = map(json.loads, (tmp_path / "toy/events.jsonl").read_text().splitlines())
    started = [row for row in rows if row["kind"] == "started"]
    assert [row["step"] for row in started] == [1, 9]
    assert {"data", "model", "load", "first step"} <= started[1].keys()
