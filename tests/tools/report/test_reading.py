"""overt/tools/report/reading.py: what a run's folder says, also one that is torn or grows."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from sample_runs import write, write_checkpoint, write_run

from overt.errors import OvertError
from overt.run.trackers import RunFolder
from overt.tools.report import reading
from overt.tools.report.reading import RunFollower, find_runs, open_run, open_runs

START = {"time": 1000.0, "kind": "start"}


def test_a_run_with_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "probe", monkeypatch)
    write_checkpoint(folder, 40, 0.4)
    run = open_run(folder)
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


def test_a_fresh_start_in_the_same_folder_forgets_what_happened(tmp_path: Path) -> None:
    skip = {"time": 1001.0, "kind": "skipped_step", "step": 7}
    resume = {"time": 1002.0, "kind": "resume", "step": 7}
    run = open_run(write(tmp_path, [START, skip, resume, START | {"time": 1003.0}]))
    assert [event["kind"] for event in run.events] == ["start", "start"]


def test_runs_are_found_below_a_folder_and_inside_a_run(tmp_path: Path) -> None:
    inner = ("sweep/one/lr=1", "sweep/one/checkpoints/step_1")  # a sweep with the name of a run
    for name in ("b", "a", "sweep/one", *inner, ".hidden", "x/y/z/deep"):
        write(tmp_path / name, [START])
    found = [path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path)]
    assert found == ["a", "b", "sweep/one", "sweep/one/lr=1"]
    assert find_runs(tmp_path / "a") == [tmp_path / "a"]
    with pytest.raises(OvertError, match="is not a directory"):
        find_runs(tmp_path / "none")


def test_what_is_no_run_is_refused_with_what_might_be_meant(tmp_path: Path) -> None:
    write(tmp_path / "tracker", [START])
    with pytest.raises(OvertError, match=r"did you mean .*/tracker\?"):
        open_run(tmp_path / "traker")
    with pytest.raises(OvertError, match=r"inside it are .*/tracker\)"):
        open_run(tmp_path)
    (tmp_path / "new" / "hang").mkdir(parents=True)
    with pytest.raises(OvertError, match="new has written nothing yet"):
        open_run(tmp_path / "new")


def test_runs_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = [write(tmp_path / part / "run", [START]) for part in ("one", "two")]
    assert [run.name for run in open_runs(folders)] == ["one/run", "two/run"]
    assert [run.name for run in open_runs(folders[:1])] == ["run"]
    with pytest.raises(OvertError, match="twice"):
        open_runs([folders[0], folders[0]])


def test_hostile_lines_cost_themselves_only(tmp_path: Path) -> None:
    digits = "1" + "0" * 400
    run = write(tmp_path / "run", [START])
    metrics = [
        b'{"step": 1, "time": 1001.0, "train/loss": 1.0}',
        b'{"step": 2, "time": 1002.0, "train/loss": ' + digits.encode() + b"}",
        b'{"step": ' + digits.encode() + b', "time": 1003.0, "train/loss": 1.0}',
        b'{"step": 3, "time": 1e300, "train/loss": 3.0}',
        b'{"step": 4, "time": NaN, "train/loss": NaN}',
        b'{"step": -5, "time": 1004.0, "train/loss": 1.0}',
        b'{"step": 6, "time": 1005.0, "\\ud800": 6.0}',
        b'{"a": ' * 5000 + b"1" + b"}" * 5000,
        b"\xff\xfe\x00",
    ]
    (run / "metrics.jsonl").write_bytes(b"\n".join(metrics))
    with (run / "events.jsonl").open("a") as file:
        file.write('{"time": 1e300, "kind": "finish", "exit_code": 0}\n')
        file.write('{"time": 1006.0, "kind": "image", "name": "x", "path": "a\\u0000b.png"}\n')
    for config in (b"a: \xff", b"[" * 5000, b"a: !!python/object:x.Y {}", b'b: "\\ud800"', b"3"):
        (run / "config.yaml").write_bytes(config)
        opened = open_run(run)
        assert opened.curves["train/loss"].steps == [1, 3, 4]
        assert opened.step == 6
        assert opened.sessions[0].end == 1006.0
        assert opened.sessions[0].exit_code is None
        json.dumps([opened.config, list(opened.curves)], ensure_ascii=False).encode()


def test_a_folder_that_may_not_be_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "open", [START])
    (tmp_path / "closed").mkdir()
    is_run = reading.is_run

    def refuse(folder: Path) -> bool:
        if folder.name == "closed":
            raise PermissionError
        return is_run(folder)

    monkeypatch.setattr(reading, "is_run", refuse)
    assert find_runs(tmp_path) == [tmp_path / "open"]


def rows(*steps: int) -> list[dict[str, Any]]:
    return [{"step": step, "time": 1000.0 + step, "train/loss": float(step)} for step in steps]


def append(path: Path, lines: list[dict[str, Any]]) -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_that_grows_is_read_once_and_ends_as_if_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(tmp_path / "run", [START], rows(1, 2), "training: {num_steps: 9}")
    read_config, configs = reading.read_config, []

    def count(path: Path) -> dict[str, Any]:
        configs.append(path)
        return read_config(path)

    monkeypatch.setattr(reading, "read_config", count)
    with RunFollower(run) as follower:
        assert follower.read().curves["train/loss"].steps == [1, 2]
        append(run / "metrics.jsonl", rows(3, 4))
        append(run / "events.jsonl", [{"time": 1005.0, "kind": "skipped_step", "step": 4}])
        now = follower.read()
        assert now.curves["train/loss"].steps == [1, 2, 3, 4]
        assert now.sessions[0].end == 1005.0
        assert follower._metrics.offset == (run / "metrics.jsonl").stat().st_size
        # A resume cuts the rows beyond its checkpoint and goes on.
        RunFolder(run).cut_after(2)
        append(run / "events.jsonl", [{"time": 1010.0, "kind": "resume", "step": 2}])
        append(run / "metrics.jsonl", [{"step": 3, "time": 1020.0, "train/loss": 0.5}])
        now = follower.read()
        assert now.curves["train/loss"].steps == [1, 2, 3]
        assert now.curves["train/loss"].values == [1.0, 2.0, 0.5]
        assert [event["kind"] for event in now.events] == ["start", "resume"]
        assert [session.end for session in now.sessions] == [1005.0, 1020.0]
        assert now == open_run(run)
        assert len(configs) == 2  # once by each of the two readers
        os.replace(run / "events.jsonl", tmp_path / "gone")
        assert follower.read().events == []


def test_a_run_that_wrote_rows_but_no_events_is_a_run(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [], rows(1, 2))
    (run / "events.jsonl").unlink()
    opened = open_run(run)
    assert opened.step == 2
    assert (opened.sessions, opened.status()) == ([], "stopped")
