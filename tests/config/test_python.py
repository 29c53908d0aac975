"""overt/config/python.py: values instead of words, with the defaults and the refusals of both."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from omegaconf import MISSING, OmegaConf
from toy_recipe.config import DataSettings, EvaluationSettings, LossSettings, ModelSettings
from toy_recipe.config import Settings as ToySettings
from toy_recipe.recipe import Toy
from toy_runs import TOY

import overt
from overt.config import build_recipe, load
from overt.config.python import NoSettings, is_importable, read
from overt.errors import ConfigError

SETTINGS = ToySettings(
    ModelSettings(width=8, dropout=0.0, idle_layer=False),
    DataSettings(samples=10, nan_sample=None, broken_sample=None),
    LossSettings(scale=1.0),
    EvaluationSettings(samples=7),
)
SHORT = {"num_steps": 5, "batch_size": 2, "num_workers": 0}


def test_a_class_gets_the_defaults_of_the_yaml_files() -> None:
    config = overt.configure(Toy, settings=SETTINGS, training=SHORT, optimizer={"lr": 0.01})
    defaults = load(["recipe=hjepa_tiny"])
    assert config.exp_name == config.recipe.name == "Toy"
    assert config.output_dir == "runs"
    assert config.recipe._target_ == "toy_recipe.recipe.Toy"
    assert config.recipe.settings == "toy_recipe.config.Settings"
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.01, 0.01)
    assert config.schedule["_target_"] == "overt.schedule.CosineScheduler"
    assert config.training.hang_minutes == defaults.training.hang_minutes
    assert config.settings == SETTINGS
    assert isinstance(build_recipe(config), Toy)


def test_it_is_what_the_command_line_gives(tmp_path: Path) -> None:
    words = ["training.num_steps=5", "optimizer.lr=0.5", "seed=3", "model.width=6"]
    said = load(["recipe=toy", "optimizer=sgd", *words], packages=[str(TOY)])
    given = overt.configure(
        "toy",
        packages=[TOY],
        settings={"model": {"width": 6}},
        training={"num_steps": 5},
        optimizer=("sgd", {"lr": 0.5}),
        seed=3,
    )
    assert given == said


def test_its_text_alone_gives_the_same_on_the_command_line(tmp_path: Path) -> None:
    config = overt.configure(Toy, settings=SETTINGS, training=SHORT, output_dir=tmp_path)
    file = tmp_path / "config.yaml"
    file.write_text(config.text)
    assert load([], str(file), [str(TOY)]) == config


def test_settings_are_a_dict_or_an_instance() -> None:
    plain = OmegaConf.to_container(OmegaConf.structured(SETTINGS))
    assert isinstance(plain, dict)
    one, other = (
        overt.configure(Toy, settings=settings, training=SHORT) for settings in (SETTINGS, plain)
    )
    assert one == other


def test_a_configuration_is_changed_by_another_call() -> None:
    first = overt.configure(Toy, settings=SETTINGS, training=SHORT, exp_name="first")
    second = overt.configure(first, exp_name="second", training={"batch_size": 5}, seed=1)
    assert (first.exp_name, first.training.batch_size, first.seed) == ("first", 2, 42)
    assert (second.exp_name, second.training.batch_size, second.seed) == ("second", 5, 1)
    assert second.training.num_steps == 5
    assert second.recipe_class is Toy
    with pytest.raises(
        ConfigError, match="optimizer=sgd: YAML files are chosen together with a recipe"
    ):
        overt.configure(first, optimizer="sgd")


def test_another_class_does_not_inherit_arguments() -> None:
    config = overt.configure(
        Toy,
        settings=SETTINGS,
        training=SHORT,
        optimizer={"_target_": torch.optim.SGD, "arguments": {"momentum": 0.9}},
        schedule={"_target_": "overt.schedule.ConstantScheduler"},
    )
    assert config.optimizer._target_ == "torch.optim.sgd.SGD"
    assert config.optimizer.arguments == {"momentum": 0.9}
    assert config.schedule == {"_target_": "overt.schedule.ConstantScheduler"}
    assert overt.configure(config, schedule={"warmup_fraction": 0.1}).schedule == {
        "_target_": "overt.schedule.ConstantScheduler",
        "warmup_fraction": 0.1,
    }


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"training": {"num_stepz": 5}},
        r"unknown key training.num_stepz \(did you mean training.num_step",
    ),
    ({"training": {"num_steps": "many"}}, "training.num_steps: Value 'many'"),
    ({"training": {"num_steps": torch.ones(1)}}, "training.num_steps: Value 'Tensor'"),
    ({"training": {"precision": "fp31"}}, r"training.precision=fp31 \(did you mean fp32"),
    ({"training": 5}, "training=5; give a dict of its keys"),
    ({"optimizer": "adammw"}, r"no such optimizer \(did you mean adamw"),
    ({"schedule": {"final_valu": 1}}, "schedule.final_valu is not an option here"),
    ({"settings": {"model": {"widht": 6}}}, r"unknown key model.widht \(did you mean model.width"),
    ({"settings": {"modle": {"width": 6}}}, r"settings.modle is not a section.*did you mean model"),
    ({"settings": ToySettings}, "filled in, or a dict"),
    ({"settings": {"model": {"width": 8}}}, "no value yet: model.dropout.*overt.configure"),
    ({"settings": ToySettings(SETTINGS.model)}, "missing mandatory value: data"),
    ({"optimizer": {"_target_": "os.system"}}, "optimizer._target_=os.system is not allowed"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_mistakes_are_refused_in_the_words_of_the_command_line(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        overt.configure(Toy, **({"settings": SETTINGS, "training": SHORT} | options))


def test_what_is_no_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"does not derive from overt\.Recipe"):
        overt.configure(dict, training=SHORT)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="recipe=toi: no such recipe"):
        overt.configure("toi")


@dataclass
class Flat:
    width: int = 8


def test_a_setting_outside_of_a_section_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"settings\.width is not a section"):
        overt.configure(Toy, settings=Flat())


class Plain(Toy):
    """Has no dataclass: its settings are its own."""

    def __init__(self, settings: Any) -> None:
        super().__init__(SETTINGS)


def test_a_recipe_needs_no_settings() -> None:
    config = overt.configure(Plain, training=SHORT)
    assert config.settings == NoSettings()
    assert build_recipe(config).settings == SETTINGS
    with pytest.raises(ConfigError, match=r"annotate it, `def __init__\(self, settings: Settings"):
        overt.configure(Plain, settings={"model": {"width": 8}}, training=SHORT)


def test_paths_and_tuples_become_plain_values(tmp_path: Path) -> None:
    config = overt.configure(
        Toy,
        settings=SETTINGS,
        training={**SHORT, "profile_steps": (1, 2)},
        checkpoint={"init_from": tmp_path},
        output_dir=tmp_path,
    )
    assert config.training.profile_steps == [1, 2]
    assert config.checkpoint.init_from == str(tmp_path)
    assert "python" not in config.text  # no object that only Python could read


def local_recipe() -> type[Toy]:
    @dataclass
    class Model:
        width: int = MISSING

    @dataclass
    class Settings:
        model: Model = field(default_factory=lambda: Model(width=12))

    class Local(Toy):
        def __init__(self, settings: Settings) -> None:
            SETTINGS.model.width = settings.model.width
            super().__init__(SETTINGS)

    Local.settings_class = Settings  # type: ignore[attr-defined]
    return Local


def test_a_class_of_a_function_is_kept_and_loads_in_this_process() -> None:
    kind = local_recipe()
    settings = kind.settings_class()  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="cannot import it: training.num_workers=0"):
        config = overt.configure(
            kind, settings=settings, training={"num_steps": 5, "batch_size": 2}
        )
    assert config.training.num_workers == 0
    assert type(build_recipe(config)) is kind
    assert build_recipe(overt.configure(config, seed=1)).settings.model.width == 12
    kept = overt.configure(kind, settings=settings, training={**SHORT, "num_workers": 2})
    assert kept.training.num_workers == 2  # and refused when it trains


def test_a_class_of_a_script_is_importable_and_one_of_a_notebook_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind = type("Mine", (Toy,), {"__module__": "__main__", "__qualname__": "Mine"})
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert not is_importable(kind)
    main.__file__ = "<stdin>"
    assert not is_importable(kind)
    main.__file__ = str(tmp_path / "script.py")
    (tmp_path / "script.py").touch()
    assert is_importable(kind)
    assert is_importable(Toy)
    assert not is_importable(local_recipe())


def test_a_stored_configuration_is_read_with_its_class_at_hand(tmp_path: Path) -> None:
    config = overt.configure(Toy, settings=SETTINGS, training=SHORT, output_dir=tmp_path)
    file = tmp_path / "config.yaml"
    file.write_text(config.text)
    assert read(file, Toy, []) == read(file, None, [TOY]) == config
    assert read(file, Toy, []).recipe_class is Toy
    with pytest.raises(ConfigError, match=r"toy_recipe\.recipe\.Toy is not allowed"):
        read(file, None, [])


def test_a_configuration_of_a_notebook_says_how_to_go_on(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    config = overt.configure(Toy, settings=SETTINGS, training=SHORT)
    file.write_text(config.text.replace("toy_recipe.recipe.Toy", "__main__.Mine"))
    with pytest.raises(ConfigError, match=r"a notebook or script.*the same call"):
        load([], str(file), [str(TOY)])


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ({"model": {"depth": 3}}, "settings={'model': ...}"),
        ({"num_steps": 3}, "training={'num_steps': ...}"),
        ({"lr": 0.1}, "optimizer={'lr': ...}"),
    ],
)
def test_a_key_in_the_place_of_its_section_is_told_where_it_belongs(
    given: dict[str, Any], instead: str
) -> None:
    with pytest.raises(ConfigError) as error:
        overt.configure("hjepa_tiny", **given)
    assert f"did you mean {instead}?" in str(error.value)


def test_a_single_folder_of_packages_is_refused() -> None:
    """Its letters were taken for folders."""
    for folder in (TOY, str(TOY)):
        with pytest.raises(ConfigError, match="give a list: packages="):
            overt.configure("toy", packages=folder)  # type: ignore[arg-type]
