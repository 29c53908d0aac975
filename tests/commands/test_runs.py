"""overt runs: a line for each run, the newest first."""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from sample_runs import write_checkpoint

from overt.cli import main
from overt.commands import runs as commands_runs
from overt.tools.report.reading import open_brief

CONFIG = """\
training: {num_steps: 100}
checkpoint: {metric_name: score, mode: max}
"""


def write(folder: Path, began: float, *, ended: dict[str, Any] | None, step: int = 60) -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    here = {"host": socket.gethostname(), "pid": os.getpid()}
    events: list[dict[str, Any]] = [{"time": began, "kind": "start", **here}]
    if ended is not None:
        events.append({"time": began + 9, "kind": "finish", **ended})
    rows = [
        {"step": 20, "time": began + 1, "evaluation/score": 0.5},
        {"step": step, "time": began + 2, "train/loss": 0.25, "train/seconds_per_step": 3.0},
    ]
    write_checkpoint(folder, 20, 0.5)
    for name, lines in (("events", events), ("metrics", rows)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write(tmp_path / "old", 1000.0, ended={"exit_code": 0}, step=100)
    write(tmp_path / "sweep" / "lr=0.1", 2000.0, ended={"exit_code": 1, "error": "DataError: x"})
    write(tmp_path / "now", time.time(), ended=None)
    return tmp_path


def test_a_table_of_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(runs)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "status", "step", "best", "left", "last", "sign"]
    words = [line.split() for line in lines]
    assert [line[0] for line in words] == ["now", "sweep/lr=0.1", "old"]
    assert [line[1] for line in words] == ["running", "failed", "finished"]
    assert "60 / 100" in lines[0]
    assert "score 0.5 at 20" in lines[0]
    assert "2 min" in lines[0]  # 40 steps of 3 seconds
    assert "2 min" not in lines[1]


def test_rows_for_scripts(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(runs), "--json"]) == 0
    first, _, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["seconds_left"] == 120.0
    assert last == {
        "path": str(runs / "old"), "status": "finished", "step": 100, "total_steps": 100,
        "best": {"score": 0.5, "step": 20}, "seconds_left": 0.0, "last_sign": 1009.0,
    }  # fmt: skip


def test_a_run_without_a_line_has_no_last_sign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "metrics.jsonl").touch()
    assert main(["runs", str(tmp_path)]) == 0
    assert "1970" not in capsys.readouterr().out


def test_one_run_and_none(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(runs / "old")]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "old"
    (tmp_path / "empty").mkdir()
    assert main(["runs", str(tmp_path / "empty")]) == 0
    assert "no runs below" in capsys.readouterr().out
    assert main(["runs", str(tmp_path / "missing")]) == 1


def test_a_run_that_cannot_be_read_fails_alone(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (runs / "old" / "metrics.jsonl").write_bytes(b'{"a": ' * 5000 + b"\xff\n")
    (runs / "old" / "config.yaml").write_bytes(b"\xff")

    def refuse(path: Path, name: str) -> Any:
        if name == "now":
            raise PermissionError(13, "Permission denied")
        return open_brief(path, name)

    monkeypatch.setattr(commands_runs, "open_brief", refuse)
    assert main(["runs", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [
        ["sweep/lr=0.1", "failed"], ["old", "finished"], ["now", "unreadable"],
    ]  # fmt: skip
    assert lines[-1].endswith("Permission denied")
    assert main(["runs", str(runs), "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["status"], last["error"]) == ("unreadable", "Permission denied")
