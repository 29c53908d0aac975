"""overt/config/choices.py: every choice of the engine has advice, for the values it really has."""

import inspect
import re

import pytest

from overt.config import schema
from overt.config.choices import ADVICE, CHOICES
from overt.config.explain import explanations

ALLOWED = {
    key: re.findall(r'"(\w+)"', values)
    for key, values in re.findall(
        r'one_of\("([\w.]+)", self\.\w+, \(([^)]*)\)\)', inspect.getsource(schema)
    )
}


def test_every_choice_of_the_schema_has_advice_for_each_value() -> None:
    assert len(ALLOWED) == 10
    advised = {key: [name for name in values if name != "null"] for key, values in CHOICES.items()}
    advised["training.device"].remove("cuda:1")  # stands for any number
    assert advised == ALLOWED


@pytest.mark.parametrize("key", [*CHOICES, *ADVICE])
def test_advice_is_for_keys_that_exist(key: str) -> None:
    section, name = key.split(".")
    assert name in explanations(getattr(schema, f"{section.capitalize()}Section"))
