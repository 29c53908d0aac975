"""Misspelled keywords of the functions that users call are refused by name."""

import inspect

import pytest

import overt
from overt.errors import ConfigError
from overt.keywords import checked_keywords
from overt.tracker import Tracker


@checked_keywords(lambda name: " (did you mean two?)" if name == "zwei" else "")
def add(one: int, *, two: int = 2) -> int:
    """Add."""
    return one + two


def test_right_keywords_reach_the_function() -> None:
    assert add(1) == 3
    assert add(one=1, two=3) == 4
    assert add.__doc__ == "Add."
    assert list(inspect.signature(add).parameters) == ["one", "two"]


@pytest.mark.parametrize(("name", "hint"), [("tow", "two"), ("zwei", "two"), ("x", None)])
def test_an_unknown_keyword_is_named_with_the_nearest(name: str, hint: str | None) -> None:
    nearest = f" (did you mean {hint}?)" if hint else ""
    with pytest.raises(ConfigError) as error:
        add(1, **{name: 3})
    assert str(error.value) == f"unknown argument {name}{nearest}; allowed: one, two"


def test_what_users_call_names_the_nearest_keyword() -> None:
    calls = {
        "did you mean training": lambda: overt.configure("hjepa_tiny", trainin={}),
        "did you mean optimizer": lambda: overt.train("hjepa_tiny", optimiser={}),
        "did you mean settings": lambda: overt.evaluate("runs/x", setings={}),
        "did you mean device": lambda: overt.load_tracker(devcie="cpu"),
        "did you mean grid": lambda: Tracker(None, None, "x")("film.mp4", gird=3),  # type: ignore
    }
    for words, call in calls.items():
        with pytest.raises(ConfigError, match=words):
            call()
