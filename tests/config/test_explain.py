"""What a setting means is read from the comments of its dataclass, and every setting has one."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from pkgutil import resolve_name
from typing import Any, get_args, get_type_hints

import pytest

from overt.config import CONF, RECIPE_SECTIONS
from overt.config.explain import explanations
from overt.config.schema import Schema


@dataclass
class Base:
    # how many
    # there are
    count: int = 1


@dataclass
class Derived(Base):
    # per step
    rate: float | None = None  # null: none
    bare: str = ""


def test_comments_above_and_behind_of_all_bases() -> None:
    assert explanations(Derived) == {
        "count": "int: how many there are",
        "rate": "float | None: per step; null: none",
        "bare": "str",
    }


def described() -> set[str]:
    """The dotted paths of the dataclasses that describe the recipes and schedules in overt/conf."""
    texts = [file.read_text() for file in CONF.glob("*/*.yaml")]
    settings = re.compile(r"^ *settings: (\S+)|^_target_: (overt\.schedule\S+)", re.MULTILINE)
    return {a or b for text in texts for a, b in settings.findall(text)}


def dataclasses_in(hint: Any) -> Iterator[type]:
    """The dataclasses in a type hint, those in a union or a list too."""
    if is_dataclass(hint) and isinstance(hint, type):
        yield hint
    for part in get_args(hint):
        yield from dataclasses_in(part)


def unexplained(kind: type) -> Iterator[str]:
    """The keys without a comment, of a dataclass and of all sections and list entries below."""
    meanings = explanations(kind)
    for name, hint in get_type_hints(kind).items():
        below = list(dataclasses_in(hint))
        for section in below:
            yield from unexplained(section)
        # A section is explained by its keys; null instead of it, or a list of it, is not.
        is_section = below == [hint] or (kind is Schema and name in RECIPE_SECTIONS)
        if name in meanings and ": " not in meanings[name] and not is_section:
            yield f"{kind.__qualname__}.{name}"


def test_a_key_without_a_comment_is_found() -> None:
    assert list(unexplained(Derived)) == ["Derived.bare"]


def test_there_are_recipes_and_schedules() -> None:
    assert {"overt.recipes.lbm.config.Settings", "overt.schedule.OneCycleScheduler"} <= described()


@pytest.mark.parametrize("path", ["overt.config.schema.Schema", *sorted(described())])
def test_every_key_says_what_it_does(path: str) -> None:
    kind = resolve_name(path)
    assert isinstance(kind, type)
    assert list(unexplained(kind)) == [], "write a comment above the field"
