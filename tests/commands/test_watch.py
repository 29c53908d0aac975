"""overt watch: follows a run until it ends."""

import io
import json
import os
import socket
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from overt.cli import main
from overt.commands import watch
from overt.commands.watch import follow


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def add(folder: Path, file: str, **row: Any) -> None:
    with (folder / file).open("a") as stream:
        stream.write(json.dumps(row) + "\n")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of this very process, which is alive."""
    folder = tmp_path / "probe"
    folder.mkdir()
    (folder / "config.yaml").write_text("training: {num_steps: 4}\n")
    here = {"host": socket.gethostname(), "pid": os.getpid()}
    add(folder, "events.jsonl", time=1.0, kind="start", **here)
    add(folder, "metrics.jsonl", step=1, time=2.0, **{"train/loss": 4.0})
    return folder


def until_the_end(folder: Path, exit_code: int) -> Any:
    """What happens while the watcher waits: a step, then the end."""
    news = iter(
        [
            lambda: add(folder, "metrics.jsonl", step=2, time=3.0, **{"train/loss": 2.0}),
            lambda: None,
            lambda: add(folder, "metrics.jsonl", step=4, time=4.0, **{"train/loss": 1.0}),
            lambda: add(folder, "events.jsonl", time=5.0, kind="finish", exit_code=exit_code),
        ]
    )
    return lambda seconds: next(news)()


def test_lines_of_news_where_there_is_no_terminal(run: Path) -> None:
    stream = io.StringIO()
    assert follow(run, 1.0, False, stream, until_the_end(run, 0)) == 0
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("probe  running  step 1 / 4  loss 4")
    news = [line for line in lines if line.startswith("probe")]
    assert [line.split("  ")[1:3] for line in news] == [
        ["running", "step 1 / 4"], ["running", "step 2 / 4"], ["running", "step 4 / 4"],
        ["finished", "step 4 / 4"],
    ]  # fmt: skip


def test_a_terminal_is_redrawn_in_place(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    assert follow(run, 1.0, False, stream, until_the_end(run, 1)) == 1
    drawings = stream.getvalue().split(watch.CLEAR_BELOW)[1:]
    assert len(drawings) == 5
    for before, after in pairwise(drawings):
        count = before.partition("\x1b[")[0].count("\n")
        assert before.endswith(f"\x1b[{count}A\r")
        assert after.startswith("probe")
    assert "failed" in drawings[-1]
    assert "█▁" in drawings[1]


def test_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(run, "metrics.jsonl", step=2, time=3.0, **{"evaluation/score": 0.5})
    add(run, "events.jsonl", time=3.0, kind="resume", step=1)
    add(run, "metrics.jsonl", step=3, time=4.0, **{"train/skipped_steps": 2.0})
    add(run, "events.jsonl", time=5.0, kind="finish", exit_code=1, error="DataError: bad file")
    assert main(["watch", str(run), "--once"]) == 0
    printed = capsys.readouterr().out
    for words in ("failed", "score", "restarts", "skipped steps", "DataError: bad file", "75%"):
        assert words in printed, words


def test_what_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(run), "--every", "0"]) == 2
    assert "above 0" in capsys.readouterr().err
    assert main(["watch", str(run.parent)]) == 1
    assert "inside it are" in capsys.readouterr().err


def test_an_interrupt_ends_the_watching(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "follow", interrupt)
    assert main(["watch", str(run)]) == 0


def test_names_of_any_length_do_not_run_into_their_values(run: Path) -> None:
    name = "evaluation/davis_first_average_jaccard_of_everything"
    add(run, "metrics.jsonl", step=2, time=3.0, **{name: 0.5, "train/lr": 0.1})
    stream = io.StringIO()
    assert follow(run, 1.0, True, stream) == 0
    assert "davis_first_average_jaccard_of_everything  0.5" in stream.getvalue()
    assert "\nlr                                         0.1\n" in stream.getvalue()
