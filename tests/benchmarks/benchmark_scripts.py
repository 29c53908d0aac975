"""Runs a benchmark within the test's process, which has imported torch already."""

import io
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def functions(script: str) -> dict[str, Any]:
    """The functions of a script that may import others beside it."""
    with patch.object(sys, "path", [str(BENCHMARKS), *sys.path]):
        return runpy.run_path(str(BENCHMARKS / script))


def run(script: str, *words: str, exit_code: int = 0) -> str:
    """What `python benchmarks/SCRIPT WORDS` prints."""
    path = [str(BENCHMARKS), *sys.path]
    with (
        patch.object(sys, "argv", [script, *words]),
        patch.object(sys, "path", path),
        redirect_stdout(io.StringIO()) as printed,
        pytest.raises(SystemExit) as ended,
    ):
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    assert (ended.value.code or 0) == exit_code
    return printed.getvalue()
