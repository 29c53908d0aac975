"""The scripts that hold plans against a GPU, and overt against its peers, work at tiny sizes."""

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def script(name: str) -> ModuleType:
    spec = spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    with patch.object(sys, "path", [str(BENCHMARKS), *sys.path]):
        spec.loader.exec_module(module)
    return module


def test_predictions_are_held_against_measurements(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = script("plan")
    gib = {"predicted": 11 * 2**30, "measured": 10 * 2**30}
    monkeypatch.setattr(plan, "in_process", lambda kind, recipe, words: gib[kind])
    monkeypatch.setattr(sys, "argv", ["plan.py", "--recipes", "hjepa"])
    assert plan.main() == 0
    printed = capsys.readouterr().out
    assert "| hjepa | 64 | 11.00 | 10.00 | +10.0% |" in printed
    assert "largest difference 10.0%" in printed


def test_only_the_user_s_lines_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = script("peers")
    (tmp_path / "code.py").write_text('"""What it is."""\n\n# why\nvalue = 1\n\nprint(value)\n')
    monkeypatch.setattr(peers, "CODE", tmp_path)
    assert peers.lines_of_code(("code.py",)) == 2


def test_overt_needs_fewer_lines_than_its_peers_as_the_table_says() -> None:
    peers = script("peers")
    lines = {name: peers.lines_of_code(files) for name, (_, _, files) in peers.FRAMEWORKS.items()}
    page = (Path(__file__).parents[2] / "docs/comparison.md").read_text()
    for name, count in lines.items():
        (row,) = re.findall(rf"^\| {name} \|.*", page, re.MULTILINE)
        assert row.split("|")[6].strip() == str(count), name
    assert lines.pop("overt") < min(50, *lines.values())


def test_overt_resumes_in_the_middle_of_an_epoch_as_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = script("peers")
    monkeypatch.setattr(sys, "path", [*sys.path])
    stop, end = 3, 6  # of 128 steps
    undisturbed = peers.one("train", "overt", end, tmp_path / "whole")
    stopped = peers.one("train", "overt", stop, tmp_path / "parts")
    assert stopped != undisturbed
    assert peers.one("train", "overt", end, tmp_path / "parts") == undisturbed
