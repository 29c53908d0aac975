"""BLADE against the recorded values of the published implementations."""

from pathlib import Path

import pytest
from blade_cases import CHECKS
from cases import find_cases, run_case


@pytest.mark.parametrize("path", find_cases("blade"))
def test_case(path: Path) -> None:
    run_case(path, CHECKS)
