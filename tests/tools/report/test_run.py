"""overt/tools/report/run.py: what a run's folder says, also one that is torn, alive or dead."""

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sample_runs import write_run

from overt.errors import OvertError
from overt.tools.report.run import find_runs, open_run, open_runs


def write(folder: Path, events: list[Any], rows: list[Any] = (), config: str = "") -> Path:  # type: ignore[assignment]
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("events.jsonl", events), ("metrics.jsonl", rows)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.yaml").write_text(config)
    return folder


def test_a_run_with_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(write_run(tmp_path / "probe", monkeypatch))
    assert run.name == "probe"
    assert run.status() == "finished"
    assert (run.step, run.total_steps) == (40, 40)
    assert run.best is not None
    assert (run.best.name, run.best.value, run.best.step) == ("score", 0.4, 40)
    assert run.config["optimizer.lr"] == 0.001
    loss = run.curves["train/loss"]
    assert loss.steps == list(range(2, 41, 2))
    assert math.isnan(loss.values[6])
    first, second = run.sessions
    assert (first.first_step, first.exit_code) == (0, None)
    assert (second.first_step, second.exit_code) == (10, 0)
    assert first.begin < first.end < second.begin < second.end
    assert run.seconds_worked == pytest.approx(first.end - first.begin + second.end - second.begin)
    # What happened beyond step 10 before the restart happened again: it is told once.
    assert [event["step"] for event in run.events if event["kind"] == "skipped_step"] == [14]
    assert [(one.name, one.step) for one in run.pictures] == [
        (name, step) for name in ("film", "tracks") for step in (10, 20, 30, 40)
    ]


def test_what_overt_evaluate_left_belongs_to_the_run(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [{"time": 1.0, "kind": "start"}])
    (run / "evaluation").mkdir()
    (run / "evaluation" / "scores.json").write_text('{"scores": {"AJ": 0.5, "left": null}}')
    (run / "evaluation" / "tracks.png").write_bytes(b"not looked at here")
    opened = open_run(run)
    assert opened.scores == {"AJ": 0.5}
    assert [(one.name, one.step) for one in opened.pictures] == [("evaluation/tracks", None)]


def test_torn_lines_and_odd_values_are_passed_over(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [{"time": 1.0, "kind": "start"}, {"kind": "no time"}, [1], "x"])
    rows = [
        '{"step": 1, "time": 2.0, "a": "nan", "b": "-inf", "c": "text", "d": true, "e": null}',
        '{"step": "1", "a": 3.0}', "[]", "", '{"step": 2, "time": 3.0, "a": 1}', '{"step": 3, "a',
    ]  # fmt: skip
    (run / "metrics.jsonl").write_text("\n".join(rows))
    (run / "config.yaml").write_text("a: [unclosed")
    opened = open_run(run)
    assert {name: curve.steps for name, curve in opened.curves.items()} == {"a": [1, 2], "b": [1]}
    assert math.isnan(opened.curves["a"].values[0])
    assert opened.curves["b"].values == [-math.inf]
    assert opened.config == {}
    assert opened.sessions[0].end == 3.0


def test_pictures_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"x")
    events = [
        {"time": 1.0, "kind": "start"},
        {"time": 2.0, "kind": "image", "name": "a", "step": 1, "path": "../secret.png"},
        {"time": 2.0, "kind": "image", "name": "b", "step": 1, "path": "gone.png"},
        {"time": 2.0, "kind": "image", "name": "c", "step": 1, "path": "config.yaml"},
    ]
    assert open_run(write(tmp_path / "run", events)).pictures == []


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
    dead = write(tmp_path / "dead", [START | here | {"pid": dead_pid()}])
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


def test_a_fresh_start_in_the_same_folder_forgets_what_happened(tmp_path: Path) -> None:
    skip = {"time": 1001.0, "kind": "skipped_step", "step": 7}
    resume = {"time": 1002.0, "kind": "resume", "step": 7}
    run = open_run(write(tmp_path, [START, skip, resume, START | {"time": 1003.0}]))
    assert [event["kind"] for event in run.events] == ["start", "start"]


def test_runs_are_found_below_a_folder_but_not_inside_a_run(tmp_path: Path) -> None:
    for name in ("b", "a", "sweep/one", "sweep/one/inner", ".hidden", "x/y/z/deep"):
        write(tmp_path / name, [START])
    found = [path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path)]
    assert found == ["a", "b", "sweep/one"]
    assert find_runs(tmp_path / "a") == [tmp_path / "a"]
    with pytest.raises(OvertError, match="is no folder"):
        find_runs(tmp_path / "none")


def test_what_is_no_run_is_refused_with_what_might_be_meant(tmp_path: Path) -> None:
    write(tmp_path / "tracker", [START])
    with pytest.raises(OvertError, match=r"did you mean .*/tracker\?"):
        open_run(tmp_path / "traker")
    with pytest.raises(OvertError, match=r"inside it are .*/tracker\)"):
        open_run(tmp_path)


def test_runs_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = [write(tmp_path / part / "run", [START]) for part in ("one", "two")]
    assert [run.name for run in open_runs(folders)] == ["one/run", "two/run"]
    assert [run.name for run in open_runs(folders[:1])] == ["run"]
    with pytest.raises(OvertError, match="twice"):
        open_runs([folders[0], folders[0]])
