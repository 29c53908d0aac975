"""What a setting means is read from the comments of its dataclass."""

from dataclasses import dataclass

from overt.config.explain import explanations


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
