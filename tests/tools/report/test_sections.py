"""overt/tools/report/sections.py: what happened to a run, its commands and its scores."""

import json
from pathlib import Path

import pytest
from page_reader import Reader
from sample_runs import write_run

from overt.tools.report.page import build_page
from overt.tools.report.run import open_run, open_runs
from overt.tools.report.sections import marks, reproduce, scores, settings, spoken


def test_the_timeline_spans_a_run_that_failed(tmp_path: Path) -> None:
    events = [
        {"time": 1000.0, "kind": "start"},
        {"time": 1600.0, "kind": "finish", "exit_code": 1, "error": "DataError: torn file"},
        {"time": 2000.0, "kind": "resume", "step": 0},
        {"time": 2400.0, "kind": "skipped_step", "step": 3},
        {"time": 3000.0, "kind": "finish", "exit_code": 0},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    reader = Reader(build_page([open_run(tmp_path, "run")]))
    (words,) = [a["aria-label"] for tag, a in reader.tags if tag == "svg"]
    assert words == "run: 2 session(s) over 33 min 20 s, 1 restart(s), 1 skipped step(s)"
    sessions = [a for tag, a in reader.tags if tag == "rect" and a["class"] == "session"]
    assert [(a["x"], a["width"]) for a in sessions] == [("0.0", "300.0"), ("500.0", "500.0")]
    (skip,) = [a for tag, a in reader.tags if tag == "line" and a["class"] == "skip"]
    assert skip["x1"] == "700.0"
    assert "exit code 1: DataError: torn file" in reader.words


@pytest.mark.parametrize(
    ("program", "typed"),
    [
        ("/somewhere/overt/train.py", "overt train"),
        ("/somewhere/overt/__main__.py", "overt"),
        ("/home/me/.venv/bin/overt", "overt"),
        ("scripts/mine.py", "python scripts/mine.py"),
    ],
)
def test_a_command_is_shown_as_one_would_type_it(program: str, typed: str) -> None:
    when, words = spoken(f"2026-01-01 10:00:00  {program} recipe=toy 'exp_name=a b'")
    assert when == "2026-01-01 10:00:00"
    assert words == f"{typed} recipe=toy 'exp_name=a b'"
    torn = "2026-01-01 10:00:00  overt train 'unclosed"
    assert spoken(torn) == ("2026-01-01 10:00:00", "overt train 'unclosed")


def test_marks_are_restarts_and_skipped_steps_with_their_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = marks(open_run(write_run(tmp_path / "a", monkeypatch)))
    assert [(mark["kind"], mark["step"]) for mark in found] == [("resume", 10), ("skip", 14)]
    assert 0 < found[0]["hours"] < found[1]["hours"]


def test_scores_of_several_runs_stand_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = open_runs([write_run(tmp_path / name, monkeypatch) for name in ("a", "b")])
    runs[1].scores["AJ"] = 0.5
    html = scores(runs)
    assert html is not None
    words = Reader(html).words
    assert "score" in words
    assert "AJ (overt evaluate)" in words
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "events.jsonl").write_text('{"time": 1.0, "kind": "start"}\n')
    assert scores([open_run(empty)]) is None


def test_the_same_settings_are_said_to_be_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (open_run(write_run(tmp_path / name, monkeypatch)) for name in ("a", "b"))
    assert "only the one difference" in Reader(settings([one, other])).words  # exp_name
    assert "all settings are the same" in Reader(settings([one, one])).words


def test_a_run_can_be_made_again_from_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(write_run(tmp_path / "my run", monkeypatch))
    words = Reader(reproduce([run])).words
    assert f"overt train --config '{tmp_path}/my run/config.yaml' exp_name='my run_again'" in words
