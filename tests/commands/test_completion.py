"""Completion: candidates of a line, and the script in a real shell."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from overt.cli import main
from overt.commands.completion import SCRIPTS, candidates


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("overt tra", ["track", "train"]),
        ("overt train rec", ["recipe.", "recipe="]),
        ("overt train recipe=lbm", ["recipe=lbm", "recipe=lbm_tiny"]),
        ("overt train training.strat", ["training.strategy="]),
        ("overt train training.precision=b", ["training.precision=bf16"]),
        ("overt train training.drop_last=t", ["training.drop_last=true"]),
        ("overt train recipe=lbm_tiny data.synth", ["data.synthetic."]),
        ("overt train recipe=lbm_tiny data.synthetic.cou", ["data.synthetic.count="]),
        ("overt track vid", []),
        ("overt train --conf", []),
    ],
)
def test_candidates(line: str, expected: list[str]) -> None:
    assert candidates(line) == expected


def test_each_shell_has_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SCRIPTS:
        assert main(["completion", shell]) == 0
        assert "overt completion --words" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(tmp_path: Path) -> None:
    program = tmp_path / "overt"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m overt "$@"\n')
    program.chmod(0o755)
    script = SCRIPTS["bash"] + (
        'COMP_LINE="overt train recipe=lbm_t"; COMP_POINT=${#COMP_LINE}; _overt 2>/dev/null; '
        'echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "lbm_tiny"  # readline has "recipe=" already
