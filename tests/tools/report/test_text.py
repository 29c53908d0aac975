"""overt/tools/report/text.py: numbers and times in a few words."""

import math

import pytest

from overt.tools.report.text import duration, number, sparkline, value


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.2, "1 s"), (59, "59 s"), (60, "1 min"), (200, "3 min 20 s"),
        (7500, "2 h 5 min"), (3601, "1 h"), (90_000, "1 d 1 h"), (math.nan, "unknown"),
    ],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (1200.0, "1,200"),
        (0.123456, "0.1235"),
        (math.nan, "NaN"),
        (-math.inf, "-Inf"),
        (1e12, "1e+12"),
    ],
)
def test_numbers(given: float, words: str) -> None:
    assert number(given) == words


def test_settings_read_as_in_yaml() -> None:
    assert value([None, True, 0.1, "a"]) == "[null, true, 0.1, a]"


def test_a_curve_in_one_line() -> None:
    assert sparkline([0.0, 7.0, math.nan, 3.5], 10) == "▁█▅"
    assert sparkline([1.0] * 5, 3) == "▁▁▁"
    assert sparkline([3.0, 3.0, 1.0, 1.0], 2) == "█▁"
    assert sparkline([], 10) == sparkline([math.nan], 10) == sparkline([1.0], 0) == ""
