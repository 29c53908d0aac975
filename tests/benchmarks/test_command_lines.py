"""Every benchmark script explains itself, and refuses what it cannot do in one sentence."""

import subprocess
from pathlib import Path

import pytest
from benchmark_scripts import BENCHMARKS, run

MODULES = {"command.py", "cifar_pictures.py", "onnx_step.py"}  # imported by others
SCRIPTS = sorted(path.name for path in BENCHMARKS.glob("*.py") if path.name not in MODULES)
REFUSED_BY_FILES = {"cifar.py", "cifar_curves.py", "cycle.py", "noise_floor.py", "untrained.py"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_explains_a_script_and_runs_nothing(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(script, "--help").startswith(f"usage: {script}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["batch_scaling.py", "nothere"],
        ["batch_scaling.py", "--batches", "0"],
        ["cifar.py", "--show", "nothere.jsonl"],
        ["cifar_curves.py", "curves.png", "--rows", "nothere.jsonl"],
        ["cycle.py", "nothere.mp4"],
        ["features.py", "--recipe", "nothere", "--device", "cpu", "--small"],
        ["noise_floor.py", "nothere"],
        ["onnx_scores.py", "nothere.onnx", "recipe=lbm_tiny"],
        ["people.py", "--tiny", "recipe=nothere"],
        ["skulls.py", "nothere"],
        ["untrained.py", "nothere"],
    ],
)
def test_what_a_script_cannot_use_is_refused_in_one_sentence(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("overt.data.skulls.synthetic.write_skulls", lambda *_, **__: None)
    code = 1 if words[0] in REFUSED_BY_FILES else 2
    run(*words, exit_code=code)
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "nothere" in said or "expected an integer" in said


def test_a_prediction_that_failed_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = subprocess.CompletedProcess([], 2, "", "a traceback\nConfigError: no such recipe")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    run("plan.py", "--recipes", "nothere", "--only", "predicted", exit_code=1)
    assert "predicted nothere failed: ConfigError: no such recipe" in capsys.readouterr().err


def test_a_teacher_is_not_written_into_a_folder_that_does_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("static_teacher.py", str(tmp_path / "absent" / "static.torchscript"), exit_code=2)
    assert "existing folder" in capsys.readouterr().err
