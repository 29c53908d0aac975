"""overt/tools/report/sections.py: timeline, settings, commands."""

import json
from pathlib import Path

import pytest
from sample_runs import Reader, write

from overt.tools.report import sections
from overt.tools.report.page import build_page
from overt.tools.report.reading import open_run, open_runs


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
    ("line", "expected"),
    [
        ("now  /a/overt/train.py recipe=x 'k=a b'", ("now", "overt train recipe=x 'k=a b'")),
        ("now  /bin/overt plan recipe=x", ("now", "overt plan recipe=x")),
        ("now  /a/overt/__main__.py plan", ("now", "overt plan")),
        ("now  mine.py --x", ("now", "python mine.py --x")),
        ("now  'unclosed", ("now", "'unclosed")),
        ("", ("", "")),
    ],
)
def test_commands_are_shown_as_one_would_type_them(line: str, expected: tuple[str, str]) -> None:
    assert sections.spoken(line) == expected


def test_settings_that_differ_are_marked_and_counted(tmp_path: Path) -> None:
    start = [{"time": 1.0, "kind": "start"}]
    configs = ["a: 1\nb: 2\n", "a: 1\nb: 3\nc: 4\n"]
    folders = [write(tmp_path / f"run{n}", start, [], text) for n, text in enumerate(configs)]
    both = Reader(sections.settings(open_runs(folders)))
    assert [a["class"] for tag, a in both.tags if tag == "tr" and "class" in a] == ["differs"] * 2
    assert "only the 2 that differ" in both.words
    assert "(none)" in both.words
    same = Reader(sections.settings(open_runs(folders[:1])))
    assert "differ" not in same.words


def test_marks_have_a_step_that_a_script_can_draw(tmp_path: Path) -> None:
    events = [
        {"time": 1000.0, "kind": "start"},
        {"time": 4600.0, "kind": "resume", "step": 3},
        {"time": 8200.0, "kind": "skipped_step", "step": 10**400},
        {"time": 8200.0, "kind": "skipped_step", "step": True},
    ]
    assert sections.marks(open_run(write(tmp_path, events))) == [
        {"kind": "resume", "step": 3, "hours": 1.0}
    ]


def test_a_skipped_step_of_no_session_has_no_mark(tmp_path: Path) -> None:
    run = open_run(write(tmp_path, [{"time": 1.0, "kind": "skipped_step", "step": 1}]))
    assert sections.marks(run) == []


def test_many_runs_are_a_table_and_share_what_is_the_same(tmp_path: Path) -> None:
    start = [{"time": 1.0, "kind": "start", "host": "here"}]
    count = sections.MOST_CARDS + 1
    folders = [write(tmp_path / f"run{n}", start, [], f"a: 1\nb: {n % 2}\n") for n in range(count)]
    runs = open_runs(folders)
    overview = Reader(sections.overview(runs))
    assert [tag for tag, _ in overview.tags].count("tr") == count + 1
    assert "article" not in [tag for tag, _ in overview.tags]
    settings = Reader(sections.settings(runs))
    spans = [a["colspan"] for tag, a in settings.tags if tag == "td" and "colspan" in a]
    assert spans == [str(count)]  # of `a`; `b` differs and has a cell for each run
    assert [tag for tag, _ in settings.tags].count("td") == count + 1
    environment = sections.environment(runs)
    assert environment is not None
    assert "colspan" in environment
