"""BLADE against the recorded values of the published implementations."""

from pathlib import Path

import pytest
from blade_cases import CHECKS
from cases import find_cases, load_case


@pytest.mark.parametrize("path", find_cases("blade"))
def test_case(path: Path) -> None:
    case, tensors = load_case(path)
    CHECKS[case["kind"]](case, tensors)
