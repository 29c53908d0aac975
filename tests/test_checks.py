"""overt/checks.py: what each check lets through, and the words with which it refuses."""

import math
import subprocess
import sys
from types import SimpleNamespace

import pytest

from overt.checks import (
    each_within,
    finite,
    height_width,
    lowest_highest,
    multiple_of,
    one_of,
    within,
)
from overt.errors import ConfigError

NONFINITE = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("number", NONFINITE)
def test_every_check_of_a_number_refuses_what_is_not_finite(number: float) -> None:
    for check in (
        lambda: finite("a.b", number),
        lambda: within("a.b", number),
        lambda: within("a.b", number, 0, above=True),
        lambda: within("a.b", number, -1, 1),
        lambda: each_within("a", SimpleNamespace(b=number), ("b",), 0),
        lambda: lowest_highest("a.b", [1.0, number]),
    ):
        with pytest.raises(ConfigError) as refused:
            check()
        assert str(refused.value) == f"a.b={number} is not finite; use a number such as 1e-4."


def test_the_ends_of_a_range_belong_to_it_unless_they_are_excluded() -> None:
    for value in (0, 1, 0.5, None):
        within("a", value, 0, 1)
    within("a", -1e300)
    with pytest.raises(ConfigError, match=r"^a=0; it must be above 0$"):
        within("a", 0, 0, above=True)
    with pytest.raises(ConfigError, match=r"^a=1; it must be at least 0 and below 1$"):
        within("a", 1, 0, 1, below=True)
    with pytest.raises(ConfigError, match=r"^a=2; it must be at most 1$"):
        within("a", 2, most=1)


def test_several_numbers_of_a_section_are_named_by_their_keys() -> None:
    settings = SimpleNamespace(first=1, second=0, third=None)
    each_within("model", settings, ("first", "third"), 1)
    with pytest.raises(ConfigError, match=r"^model\.second=0; it must be at least 1$"):
        each_within("model", settings, ("first", "second"), 1)
    with pytest.raises(ConfigError, match=r"^second=0; it must be at least 1$"):
        each_within("", settings, ("second",), 1)


@pytest.mark.parametrize("pair", [[], [1.0], [1.0, 2.0, 3.0], [0.0, 1.0], [2.0, 1.0], [0.5, 1.5]])
def test_a_range_has_two_ordered_ends(pair: list[float]) -> None:
    lowest_highest("a", [0.5, 1.0], most=1)
    with pytest.raises(ConfigError, match=r"give \[lowest, highest\], both above 0 and at most 1"):
        lowest_highest("a", pair, most=1)


def test_height_and_width_are_two_large_enough_multiples() -> None:
    height_width("a", [1, 2])
    height_width("a", [32, 64], least=32, multiple=32)
    for size in ([], [1], [1, 2, 3], [0, 1], [-1, 1]):
        with pytest.raises(ConfigError, match=r"give \[height, width\] in pixels, both at least 1"):
            height_width("a", size)
    with pytest.raises(ConfigError, match="both multiples of 32"):
        height_width("a", [32, 33], least=32, multiple=32)


def test_a_divisor_of_zero_is_refused_before_anything_is_divided() -> None:
    multiple_of("width", 12, "heads", 4)
    with pytest.raises(ConfigError, match=r"^heads=0; it must be at least 1$"):
        multiple_of("width", 12, "heads", 0)
    with pytest.raises(ConfigError, match=r"^width=13 is not a multiple of heads=4; use 12$"):
        multiple_of("width", 13, "heads", 4)
    with pytest.raises(ConfigError, match=r"use 4$"):
        multiple_of("width", 1, "heads", 4)


def test_a_word_that_is_not_allowed_gets_the_nearest_one() -> None:
    one_of("mode", "min", ("min", "max"))
    with pytest.raises(ConfigError) as refused:
        one_of("mode", "maxx", ("min", "max"))
    assert str(refused.value) == "mode=maxx (did you mean max?); use one of min, max"


def test_a_number_of_hundreds_of_digits_is_refused() -> None:
    with pytest.raises(ConfigError, match="steps has 400 digits"):
        within("steps", int("9" * 400), 0)


def test_the_checks_need_neither_torch_nor_numpy() -> None:
    code = "import sys, overt.checks; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
