"""`overt doctor`: what is well, what is not, and that each finding comes with its remedy."""

import json
import os
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_runs import TOY

from overt.cli import main as overt
from overt.commands.doctor import main
from overt.distributed import World
from overt.errors import CheckpointError

TOY_RUN = ["--package", str(TOY), "recipe=toy"]
ALONE = World(0, 1, 0, torch.device("cpu"))


def findings(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, dict[str, str]]]:
    code = main([*words, "--json"])
    answer = json.loads(capsys.readouterr().out)
    return code, {row["name"]: row for row in answer["checks"]}


def test_a_machine_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = findings(["--device", "cpu", "--folder", str(tmp_path)], capsys)
    assert code == 0
    assert {"versions", "rendezvous", "GPUs", "NCCL", "clock", "files"} <= found.keys()
    assert found["versions"]["level"] == found["files"]["level"] == "OK"
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_a_run_that_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = findings([*TOY_RUN, f"output_dir={tmp_path}/runs"], capsys)
    assert code == 0
    assert found["batch"]["found"] == "2 per process x 1 process(es) x 1 accumulated = 2"
    assert found["data"]["found"].startswith("10 samples; 8 of them read")
    assert found["disk space"]["level"] == "OK"
    assert "can be opened" in found["evaluation data"]["found"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "name", "text"),
    [
        ("training.num_stps=1", "configuration", "did you mean training.num_steps?"),
        ("data.samples=0", "data", "empty"),
        ("data.broken_sample=3", "data", "sample 3 cannot be read: toy file 3 is unreadable"),
        ("training.global_batch_size=5", "batch", "5 is not"),
        ("checkpoint.init_from=nowhere", "initial weights", "init_from=nowhere: no such"),
    ],
)
def test_a_run_that_cannot_work_fails_with_a_remedy(
    override: str, name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*TOY_RUN, f"output_dir={tmp_path}", override, "--samples", "10"]
    code, found = findings(words, capsys)
    assert code == (2 if name == "configuration" else 1)  # a mistake in usage, as for all verbs
    assert found[name]["level"] == "FAIL"
    assert text in found[name]["found"]
    assert found[name]["remedy"]


def test_weights_that_do_not_fit_are_the_model_s_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def misfit(*_: object) -> int:
        raise CheckpointError("the checkpoint is of another model")

    monkeypatch.setattr("overt.tools.doctor.run.checkpoint_bytes", misfit)
    code, found = findings(TOY_RUN, capsys)
    assert code != 0
    assert found["model"]["level"] == "FAIL"
    assert "disk space" not in found


def test_strict_makes_a_warning_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = [*TOY_RUN, f"output_dir={tmp_path}", "--step-seconds", "1e-9"]
    assert main(slow) == 0
    assert "WARN  loader speed" in capsys.readouterr().out
    assert main([*slow, "--strict"]) == 1


def test_the_verb_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert overt(["doctor", "--device", "cpu", "--folder", str(tmp_path)]) == 0
    assert "OK    versions" in capsys.readouterr().out


def test_contradicting_ranks_are_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    for name in ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    code, found = findings(["--folder", str(tmp_path)], capsys)
    assert code == 1
    assert "RANK=0 but not WORLD_SIZE" in found["rendezvous"]["found"]


def doctor_of(folder: Path) -> tuple[int, list[str], str]:
    with redirect_stdout(StringIO()) as printed:
        code = main([*TOY_RUN, f"output_dir={folder}", "--json"])
    return code, os.listdir(folder), printed.getvalue()


def test_two_processes_find_the_same(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (code, left, text), other = run_processes(doctor_of, 2, folder)
    assert (code, left) == (0, [])
    assert other == (0, [], "")
    checks = {row["name"]: row["found"] for row in json.loads(text)["checks"]}  # one answer
    assert checks["rendezvous"].startswith("2 processes on 1 host(s)")
    assert "between any two processes" in checks["clock"]
    assert "seen by all within" in checks["files"]
