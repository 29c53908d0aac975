"""overt/tools/launch/worker.py: a note instead of an exit code."""

from pathlib import Path

import pytest
from toy_runs import TOY

from overt.errors import PREEMPTED_EXIT_CODE
from overt.tools.launch import worker


@pytest.mark.parametrize(
    ("code", "expected", "noted"), [(0, 0, False), (1, 1, False), (PREEMPTED_EXIT_CODE, 0, True)]
)
@pytest.mark.usefixtures("restored_signals")
def test_a_worker_that_saved_leaves_a_note_and_ends_well(
    code: int, expected: int, noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overt.train.main", lambda words: code)
    assert worker.main([str(tmp_path / "notes"), "recipe=x"]) == expected
    assert (tmp_path / "notes").exists() == noted


@pytest.mark.usefixtures("restored_signals")
def test_a_worker_passes_its_words_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--package", str(TOY), "recipe=toy", "training.num_stps=1"]
    assert worker.main([str(tmp_path / "notes"), *words]) == 2
    assert "did you mean training.num_steps?" in capsys.readouterr().err
