"""overt/config/checked.py: numbers that are not finite, data that is not named, constructors."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, ListConfig, OmegaConf
from toy_recipe.recipe import Toy
from toy_runs import TOY, toy_config

from overt.config import (
    CONF,
    RECIPE_SECTIONS,
    build_recipe,
    check,
    compose_values,
    import_target,
    load,
)
from overt.config.checked import NO_DATA, _merge, _missing_keys, _refuse_nonfinite, _to_yaml
from overt.config.python import configure, read
from overt.config.schema import Schema
from overt.errors import ConfigError
from overt.files.yaml_text import own_values, parse_yaml

RECIPES = sorted(path.stem for path in (CONF / "recipe").glob("*.yaml"))
SHORT = {"num_steps": 1, "batch_size": 1}
SEEN: set[tuple[str, str]] = set()


def float_keys(values: Any, prefix: str = "") -> Iterator[str]:
    """Keys below a node that take a float: by the type of the field, else by the value."""
    keys = range(len(values)) if isinstance(values, ListConfig) else list(values)
    for key in keys:
        name = f"{prefix}.{key}" if prefix else str(key)
        node = values._get_node(key)
        if isinstance(node, DictConfig | ListConfig):
            if not node._is_none() and not node._is_missing():
                yield from float_keys(node, name)
        elif node._metadata.ref_type is float or isinstance(node._value(), float):
            yield name


def typed(values: DictConfig) -> DictConfig:
    """The values in the schema of engine and recipe, so that every float is known as one."""
    whole = OmegaConf.merge(OmegaConf.structured(Schema), values)
    settings = OmegaConf.structured(import_target("recipe.settings", whole.recipe.settings))
    sections = [name for name in RECIPE_SECTIONS if name in settings]  # not all have a loss
    merged = OmegaConf.merge(settings, {name: values[name] for name in sections})
    for name in sections:
        whole[name] = merged[name]
    return whole


def is_optional(values: DictConfig, key: str) -> bool:
    """Tell whether a key of a typed section may be null."""
    section, _, name = key.rpartition(".")
    parent = OmegaConf.select(values, section)
    node = parent._get_node(int(name) if isinstance(parent, ListConfig) else name)
    return node._metadata.ref_type is float and bool(node._is_optional())


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_float_of_every_recipe_refuses_what_is_not_finite(recipe: str) -> None:
    values = compose_values([f"recipe={recipe}", "data.root=somewhere"])
    whole = typed(values)
    keys = list(float_keys(whole))
    assert {"optimizer.lr", "training.timeout_minutes", "training.grad_clip_norm"} <= set(keys)
    assert any(key.startswith("model.") for key in keys)
    numbers = itertools.cycle([float("nan"), float("inf"), float("-inf")])
    for index, key in enumerate(keys):
        owner = str(values.recipe.settings) if key.split(".")[0] in RECIPE_SECTIONS else ""
        if (owner, key) in SEEN and index:
            continue
        SEEN.add((owner, key))
        number = next(numbers)
        if index == 0:  # all of the check once, then only what it calls for this
            broken = values.copy()
            OmegaConf.update(broken, key, number, force_add=True)  # a default may be left out
            with pytest.raises(ConfigError) as refused:
                check(broken, ["overt", "torch.optim"])
        else:
            finite = OmegaConf.select(whole, key)
            OmegaConf.update(whole, key, number)
            with pytest.raises(ConfigError) as refused:
                _refuse_nonfinite(whole)
            OmegaConf.update(whole, key, finite)
        shown = str(refused.value).partition("=")[0]
        assert shown.replace("[", ".").replace("]", "") == key
        remedy = "a finite number, or null" if is_optional(whole, key) else "a number such as 1e-4"
        assert str(refused.value).endswith(f"={number} is not finite; use {remedy}.")


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("optimizer.lr=inf", "optimizer.lr=inf"),
        ("optimizer.lr=1e400", "optimizer.lr=inf"),
        (
            "training.memory_gib=nan",
            "training.memory_gib=nan is not finite; use a finite number, or null.",
        ),
        ("optimizer.arguments={eps:nan}", "optimizer.arguments.eps=nan"),
        ("optimizer.arguments.betas=[0.9,inf]", "optimizer.arguments.betas[1]=inf"),
        ("schedule.final_value=-inf", "schedule.final_value=-inf"),
        ("logging.trackers=[{_target_:overt.x,rate:nan}]", "logging.trackers[0].rate=nan"),
        ("loss.scale=nan", "loss.scale=nan"),
        ("model.dropout=${optimizer.lr} optimizer.lr=inf", "optimizer.lr=inf"),
        ("model.dropout=${nowhere}", "model.dropout: Interpolation key 'nowhere' not found"),
    ],
)
def test_numbers_of_untyped_sections_and_of_own_recipes_are_looked_at_too(
    override: str, key: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(["recipe=toy", *override.split()], packages=[str(TOY)])
    assert str(refused.value).startswith(key)


def test_a_field_may_say_that_it_takes_infinity() -> None:
    @dataclass
    class Limits:
        reach: float = field(default=float("inf"), metadata={"finite": False})
        step: float = 1.0

    _refuse_nonfinite(OmegaConf.structured(Limits))
    with pytest.raises(ConfigError, match=r"^step=inf is not finite"):
        _refuse_nonfinite(OmegaConf.structured(Limits(step=float("inf"))))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_model_can_be_configured_without_naming_data(recipe: str) -> None:
    named = compose_values([f"recipe={recipe}"])
    root = None if OmegaConf.is_missing(named.data, "root") else named.data.root
    config = load([f"recipe={recipe}"], needs_data=False)
    assert config.settings.data.root == (NO_DATA if root is None else root)
    if root is not None:
        assert config == load([f"recipe={recipe}"])


def test_a_recipe_without_a_path_of_data_needs_no_stand_in() -> None:
    config = load(["recipe=toy"], packages=[str(TOY)], needs_data=False)
    assert config == load(["recipe=toy"], packages=[str(TOY)])
    values = compose_values(["recipe=toy"], packages=[str(TOY)])
    values.data.samples = "???"  # a number: no stand-in would be true
    with pytest.raises(ConfigError, match=r"no value yet: data\.samples"):
        check(values, ["overt", "torch.optim", "toy_recipe"], needs_data=False)


@pytest.mark.parametrize(
    "override",
    ["exp_name=../../x", "exp_name=/tmp/x", "exp_name=''", "exp_name=a/../b", "exp_name='a//b'",
     "exp_name='a\tb'", "exp_name=' '", "exp_name=" + "x" * 201, "seed=-9223372036854775809",
     "seed=-1", "seed=9223372036854775808", "training.num_steps=" + "9" * 400,
     "optimizer.weight_decay_schedule=1", "schedule._target_=[1,2]", "schedule._target_=null",
     "recipe.settings=overt.train.sys", "training.num_steps=${nope}", "optimizer.lr=1e400",
     "optimizer.lr=" + "9" * 400, "optimizer.arguments.betas=[" + "9" * 400 + ",1]",
     "++checkpoint.init_skip=${training}", "model.width=${oc.decode:'['}"],
)  # fmt: skip
def test_a_value_of_anything_is_refused_with_its_key(tmp_path: Path, override: str) -> None:
    key = override.partition("=")[0].lstrip("+")
    with pytest.raises(ConfigError) as refused:
        toy_config(tmp_path, override)
    assert key in str(refused.value) or key.partition(".")[0] in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_a_recipe_takes_its_settings_or_nothing() -> None:
    class Alone(Toy):
        def __init__(self) -> None:
            super().__init__(config.settings)

    class Greedy(Toy):
        def __init__(self, settings: Any, size: int) -> None: ...

    config = load(["recipe=toy"], packages=[str(TOY)])
    assert isinstance(build_recipe(replace(config, recipe_class=Alone)), Alone)
    with pytest.raises(
        ConfigError, match=r"Greedy.__init__\(settings: Any, size: int\).* cannot be called"
    ):
        build_recipe(replace(config, recipe_class=Greedy))


@pytest.mark.parametrize(
    "override",
    ["optimizer.arguments.betas={}", "optimizer.lr=${..}", "training=[]", "+seed.x=1",
     "++training.evaluate_sets=[{_target_:x}]", "~training.nope", "optimizer.lr=" + "9" * 400],
)  # fmt: skip
def test_an_override_of_a_file_is_refused_with_its_key(tmp_path: Path, override: str) -> None:
    """As one of composed groups is: with --config the values come another way."""
    file = tmp_path / "config.yaml"
    file.write_text(toy_config(tmp_path).text)
    with pytest.raises(ConfigError) as refused:
        load([override], str(file), [str(TOY)])
    assert override.partition("=")[0].lstrip("+~").partition(".")[0] in str(refused.value)


def test_the_text_is_that_of_omegaconf_and_read_as_it_reads_it() -> None:
    words = ["yes", "1e-4", "1_000", "12:30:45", "2024-01-01", "~", "a: b", "é", " x", "- y", "",
             "two\nlines", "long " * 40, "${seed}"]  # fmt: skip
    numbers = [1e-5, 1e300, 1.0, -3, 2**70, True, None, float("inf")]
    values = OmegaConf.create({"seed": 3, "b": {"words": words, "numbers": numbers, "e": {}}})
    text = _to_yaml(values)
    assert text == OmegaConf.to_yaml(values, resolve=True)
    assert own_values(text) == OmegaConf.to_container(parse_yaml(text, "config.yaml"))


@dataclass
class PathData:
    root: Path = Path("a/b")
    others: list[Path] = field(default_factory=lambda: [Path("1"), Path("null")])


@dataclass
class PathSettings:
    data: PathData = field(default_factory=PathData)


class OfPaths(Toy):
    def __init__(self, settings: PathSettings) -> None: ...


def test_paths_of_settings_are_written_as_text_and_read_as_paths(tmp_path: Path) -> None:
    config = configure(OfPaths, settings=PathSettings(), training=SHORT)
    assert own_values(config.text)["data"] == {"root": "a/b", "others": ["1", "null"]}
    file = tmp_path / "config.yaml"
    file.write_text(config.text)
    assert read(file, OfPaths, []).settings == PathSettings()


def test_a_merge_is_that_of_omegaconf_whatever_was_merged_before() -> None:
    schema = OmegaConf.structured(Schema)
    values = compose_values(["recipe=hjepa_tiny"])
    changed = compose_values(["recipe=hjepa_tiny", "training.num_steps=7", "seed=3"])
    OmegaConf.set_struct(changed, False)
    del changed.checkpoint
    for each in (values, changed, values, DictConfig({})):
        merged = _merge(Schema, each)
        assert merged == OmegaConf.merge(schema, each)
        assert list(_missing_keys(merged)) == list(_missing_keys(OmegaConf.merge(schema, each)))


def test_missing_keys_are_those_of_omegaconf() -> None:
    values = OmegaConf.create(
        {"a": "???", "b": {"c": ["???", {"d": "???"}, None]}, "f": None, "g": "${b}"}
    )
    assert set(_missing_keys(values)) == OmegaConf.missing_keys(values)
    assert {"a", "b.c[0]", "b.c[1].d"} <= set(_missing_keys(values))


def test_any_section_may_refer_to_any_other(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "training.num_steps=${data.samples}", "exp_name=b${model.width}")
    assert config.training.num_steps == config.settings.data.samples
    assert config.exp_name == f"b{config.settings.model.width}"


def test_a_run_may_be_named_after_a_number(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "exp_name=${seed}", "seed=7")
    assert config.run_dir == tmp_path / "7"


@pytest.mark.parametrize("text", ["2024_01_15", "1e5", "true", "007", "1.50"])
def test_a_field_of_text_keeps_what_was_typed(tmp_path: Path, text: str) -> None:
    config = toy_config(tmp_path, f"exp_name={text}", f"logging.wandb_project={text}")
    assert config.exp_name == text
    assert config.logging.wandb_project == text
    file = tmp_path / "config.yaml"
    file.write_text(config.text)
    assert load([], str(file), [str(TOY)]) == config
    assert load([f"exp_name={text}"], str(file), [str(TOY)]) == config


def test_only_a_field_of_text_keeps_what_was_typed(tmp_path: Path) -> None:
    words = ["exp_name=1e5", "exp_name=b", "training.num_steps=1_0", "optimizer.lr=1e-3"]
    config = toy_config(tmp_path, *words, "optimizer.arguments.eps=1e-3")
    assert config.exp_name == "b"  # the last one counts
    assert (config.training.num_steps, config.optimizer.lr) == (10, 1e-3)
    assert config.optimizer.arguments["eps"] == 1e-3
