"""overt/config/tuples.py: fields typed as tuples hold tuples of their length."""

from dataclasses import dataclass, field

import pytest
from omegaconf import MISSING
from toy_recipe.recipe import Toy

import overt
from overt.config.tuples import make_tuples
from overt.errors import ConfigError


@dataclass(frozen=True)
class Level:
    sides: tuple[float, ...] = ()
    names: list[str] = field(default_factory=list)


@dataclass
class Data:
    size: tuple[int, int] = MISSING
    crop: tuple[int, int] | None = None
    levels: list[Level] = field(default_factory=list)
    fixed: tuple[Level, ...] = ()
    by_name: dict[str, Level] = field(default_factory=dict)


@dataclass
class Settings:
    data: Data = field(default_factory=Data)


class Sized(Toy):
    settings_class = Settings

    def __init__(self, settings: Settings) -> None:
        self.settings = settings


def test_a_recipe_gets_tuples_where_its_settings_are_typed_so() -> None:
    data = {"size": [3, 4], "levels": [{"sides": [1, 2], "names": ["a"]}], "by_name": {"x": {}}}
    data["fixed"] = [{"sides": [3]}]
    training = {"num_steps": 1, "batch_size": 1, "num_workers": 0}
    settings = overt.configure(Sized, settings={"data": data}, training=training).settings
    assert settings.data.size == (3, 4)
    assert settings.data.crop is None
    assert settings.data.levels == [Level((1.0, 2.0), ["a"])]
    assert settings.data.by_name == {"x": Level()}
    assert settings.data.fixed == (Level((3.0,)),)


def test_a_tuple_of_another_length_is_refused_with_its_key() -> None:
    data = Data(size=(1, 2), crop=[1, 2, 3])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^data\.crop=\[1, 2, 3\] has 3 values; expected 2$"):
        make_tuples(Settings(data))
