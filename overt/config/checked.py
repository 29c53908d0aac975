"""From composed values to a checked, typed configuration: every key, type and number, or refused.

Nothing after `check` sees a DictConfig. Never imports torch.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path, PurePath
from types import UnionType
from typing import Any, cast, get_args, get_type_hints

import yaml  # type: ignore[import-untyped]
from omegaconf import MISSING, DictConfig, OmegaConf, StringNode, flag_override
from omegaconf._utils import OmegaConfDumper
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, ValidationError

from overt.checks import finite, within
from overt.config.schema import (
    CheckpointSection,
    LoggingSection,
    OptimizerSection,
    RecipeSection,
    Schema,
    TrainingSection,
)
from overt.config.tuples import make_tuples
from overt.errors import ConfigError, nearest
from overt.recipe import Recipe, check_instance, check_recipe
from overt.schedule_section import build_schedule

RECIPE_SECTIONS = ("model", "data", "loss", "evaluation")
LARGEST_INTEGER = 2**63 - 1
LARGEST_FLOAT = sys.float_info.max
# Stands for paths of the section `data` where no data set is needed; shows up in errors as a path.
NO_DATA = "(data.root was not given)"


@dataclass(frozen=True)
class Config:
    """A configuration that has passed every check. `text` is the resolved YAML, enough to rerun."""

    exp_name: str
    output_dir: str
    seed: int
    recipe: RecipeSection
    training: TrainingSection
    optimizer: OptimizerSection
    schedule: dict[str, Any]
    logging: LoggingSection
    checkpoint: CheckpointSection
    settings: Any
    text: str
    # Of a recipe that was given as a class; one of a notebook cannot be imported.
    recipe_class: type[Recipe] | None = field(default=None, repr=False, compare=False)

    @property
    def run_dir(self) -> Path:
        return Path(self.output_dir) / self.exp_name


def check(
    values: DictConfig,
    allowed: Sequence[str],
    needs_data: bool = True,
    classes: Mapping[str, type] | None = None,
    typed: Mapping[str, tuple[str, str]] | None = None,
) -> Config:
    """Merge the values into the typed schema, the recipe's own part included, or refuse.

    `classes` are those of `recipe._target_` and `recipe.settings` that need not be imported.
    `typed` are the words behind numbers and booleans by key, as read and as typed.
    """
    classes, typed = classes or {}, typed or {}
    checked = _merge(Schema, values)
    _keep_typed(checked, typed)
    _refuse_missing(checked, ("recipe",))
    for key in ("recipe._target_", "recipe.settings", "optimizer._target_"):
        _check_allowed(key, _target_of(checked, key), allowed)
    settings_class = classes.get("recipe.settings") or import_target(
        "recipe.settings", checked.recipe.settings
    )
    if not (isinstance(settings_class, type) and is_dataclass(settings_class)):
        raise ConfigError(
            f"recipe.settings={checked.recipe.settings} is not a dataclass; name the one that "
            "holds the recipe's settings"
        )
    # A recipe may do without a section; a section without values may be missing. Moved, not copied.
    sections = DictConfig({}, flags={"no_deepcopy_set_nodes": True})
    for name in RECIPE_SECTIONS:
        if values.get(name):
            sections[name] = checked[name]
    settings = _merge(settings_class, sections)
    _keep_typed(settings, typed)
    if not needs_data:
        _leave_data_open(settings.get("data"))
    # Moved, not copied: references of the settings now find every section of the configuration.
    with flag_override(checked, "no_deepcopy_set_nodes", True):
        for name in RECIPE_SECTIONS:
            checked[name] = settings.get(name, {})
    _refuse_missing(checked)
    _refuse_nonfinite(checked)
    engine = [part.name for part in fields(Schema) if part.name not in RECIPE_SECTIONS]
    parts = {name: _to_object(checked[name], name) for name in engine}
    for name in ("exp_name", "output_dir"):
        parts[name] = str(parts[name])  # ${seed} is a number
    refuse_name(parts["exp_name"])
    within("seed", parts["seed"], 0, LARGEST_INTEGER)
    for key, target in parts["optimizer"].rule_targets.items():
        _check_allowed(key, target, allowed)
    for tracker in parts["logging"].trackers:
        _check_allowed("logging.trackers", tracker["_target_"], allowed)
    decay = parts["optimizer"].weight_decay_schedule
    for key, target in _schedule_targets(parts["schedule"], decay).items():
        _check_allowed(key, target, allowed)
    # Whatever the schedule refuses, it refuses now: the numbers given here do not matter.
    build_schedule(parts["schedule"], base_value=1.0, epochs=1.0, steps_per_epoch=1)
    if decay is not None:
        build_schedule(decay, 1.0, 1.0, 1, where="optimizer.weight_decay_schedule")
    _resolve(settings, checked)
    return Config(
        **parts,
        settings=_to_object(settings, "the recipe's settings"),
        text=_to_yaml(checked),
        recipe_class=classes.get("recipe._target_"),
    )


class _Dumper(getattr(yaml, "CDumper", yaml.Dumper)):  # type: ignore[misc]
    """That of OmegaConf in C: a third of its time."""


_Dumper.add_representer(str, OmegaConfDumper.str_representer)
# As text, which OmegaConf turns back: a tag of Python would be refused by every reader.
_Dumper.add_multi_representer(
    PurePath, lambda dumper, path: OmegaConfDumper.str_representer(dumper, str(path))
)


def _to_yaml(values: DictConfig) -> str:
    """Return what `OmegaConf.to_yaml` does, with every reference resolved."""
    plain = OmegaConf.to_container(values, resolve=True, enum_to_str=True)
    text: str = yaml.dump(
        plain, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False
    )
    return text


def schedule_targets(config: Config) -> dict[str, str]:
    """Return the classes of all schedules by their keys."""
    return _schedule_targets(config.schedule, config.optimizer.weight_decay_schedule)


def _schedule_targets(schedule: Any, weight_decay: Any) -> dict[str, str]:
    targets = {}
    for key, section in (
        ("schedule", schedule),
        ("optimizer.weight_decay_schedule", weight_decay),
    ):
        nodes = {key: section}
        levels = section.get("levels") if isinstance(section, Mapping) else None
        if isinstance(levels, Sequence) and not isinstance(levels, str):
            nodes |= {f"{key}.levels[{number}]": level for number, level in enumerate(levels)}
        for name, node in nodes.items():
            target = node.get("_target_") if isinstance(node, Mapping) else None
            # One that is not text is refused by the schedule itself.
            if isinstance(target, str):
                targets[f"{name}._target_"] = target
    return targets


def _target_of(checked: DictConfig, key: str) -> str:
    try:
        return str(OmegaConf.select(checked, key))
    except (OmegaConfBaseException, AttributeError) as error:  # its section has no value
        raise ConfigError(
            f"{key} has no value; a file must hold the section {key.partition('.')[0]}"
        ) from error


def _merge(kind: type, values: DictConfig) -> DictConfig:
    """Return the values in the types of a dataclass, or refuse."""
    try:
        merged = deepcopy(_schema(kind, frozenset(_sections(values))))
        merged.merge_with(values)
        return merged
    except ConfigKeyError as error:
        key = str(error.full_key)
        hint = nearest(key, list(dotted_keys(OmegaConf.structured(kind))))
        raise ConfigError(
            f"unknown key {key}{hint}; `overt config recipe=NAME` lists all keys"
        ) from error
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{error.full_key or 'the configuration'}: {reason}") from error
    except OverflowError as error:  # an integer of hundreds of digits where a float belongs
        key = next(iter(_beyond_floats(values)), "the configuration")
        raise ConfigError(
            f"{key}: the number is too large; up to {LARGEST_FLOAT:.0e} is allowed"
        ) from error


def _keep_typed(values: DictConfig, typed: Mapping[str, tuple[str, str]]) -> None:
    """Give fields of text what was typed: `2024_01_15` and `1e5` were read as numbers."""
    for key, (as_read, as_typed) in typed.items():
        node: Any = values
        for name in key.split("."):
            is_open = isinstance(node, DictConfig) and isinstance(node._content, dict)
            node = node._get_node(name, validate_access=False) if is_open else None
        # A later override may have given it another value.
        if isinstance(node, StringNode) and node._value() == as_read:
            node._set_value(as_typed)


def _sections(values: DictConfig) -> Iterator[str]:
    for name in map(str, values):
        node = values._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_interpolation():
            yield name


@lru_cache(maxsize=64)
def _schema(kind: type, sections: frozenset[str]) -> DictConfig:
    """Return `OmegaConf.structured(kind)` with these sections expanded, to be copied.

    A merge would build each of them from its dataclass again: half of its time.
    """
    schema = cast(DictConfig, OmegaConf.structured(kind))
    for name in sections:
        node = schema._get_node(name, validate_access=False)
        if isinstance(node, DictConfig) and node._is_missing():
            node._set_value(node._metadata.ref_type)
    return schema


def _beyond_floats(values: Any) -> Iterator[str]:
    """Yield the dotted keys of integers that no float can hold."""
    if OmegaConf.is_config(values):
        values = OmegaConf.to_container(values)
    nodes: list[tuple[str, Any]] = [("", values)]
    while nodes:
        key, node = nodes.pop()
        if isinstance(node, Mapping):
            nodes += [(f"{key}.{name}".lstrip("."), child) for name, child in node.items()]
        elif isinstance(node, list):
            nodes += [(f"{key}[{index}]", child) for index, child in enumerate(node)]
        elif OmegaConf.is_config(node):
            nodes.append((key, OmegaConf.to_container(node)))
        elif isinstance(node, int) and abs(node) > LARGEST_FLOAT:
            yield key


def _to_object(node: Any, name: str) -> Any:
    """Typed dataclasses (their own checks run here) or plain values."""
    if not OmegaConf.is_config(node):
        return node
    try:
        made = OmegaConf.to_object(node)
        make_tuples(made)
        return made
    except ConfigError:
        raise
    except (OmegaConfBaseException, TypeError, ValueError, AttributeError) as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{getattr(error, 'full_key', None) or name}: {reason}") from error


def refuse_name(name: str) -> None:
    """Refuse a name that leads out of output_dir, or that no file system takes."""
    parts = name.split("/")
    inside = all(part.strip() and part not in (".", "..") for part in parts)
    if not inside or not name.isprintable() or max(map(len, parts)) > 200:
        raise ConfigError(
            f"exp_name={name!r} is not a name below output_dir; use letters, digits and "
            "`- _ . , = +`, and / for folders, without empty parts and `..`, up to 200 "
            "characters in each part"
        )


def _resolve(settings: DictConfig, checked: DictConfig) -> None:
    """Replace references of the recipe's settings to any section, such as ${training.cuda_graph}.

    By hand: merging the settings with their resolved values would take ten times as long.
    """
    for key in list(_references(settings)):
        try:
            OmegaConf.update(settings, key, OmegaConf.select(checked, key))
        except OmegaConfBaseException as error:  # a value of another type
            raise ConfigError(f"{key}: {str(error).splitlines()[0]}") from error


def _references(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield the keys below a node whose values refer to others."""
    indices = range(len(node)) if OmegaConf.is_list(node) else list(node)
    for index in indices:
        child = node._get_node(index)
        if _is_settled(child):
            continue
        name = f"{prefix}[{index}]" if OmegaConf.is_list(node) else f"{prefix}.{index}".lstrip(".")
        if child._is_interpolation():
            yield name
        elif OmegaConf.is_config(child) and not (child._is_none() or child._is_missing()):
            yield from _references(child, name)


def _is_settled(node: Any) -> bool:
    """Return whether a node has a value that refers to no other, sooner than OmegaConf says it."""
    value = node._value()
    if isinstance(value, str):
        return value != MISSING and "${" not in value
    return value is None or isinstance(value, int | float)


def _refuse_missing(values: DictConfig, sections: Sequence[str] = ()) -> None:
    try:
        keys = sorted(_missing_keys(values))
    except OmegaConfBaseException as error:  # an unresolved interpolation
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{error.full_key or 'the configuration'}: {reason}") from error
    missing = [key for key in keys if not sections or key.partition(".")[0] in sections]
    if missing:
        raise ConfigError(
            "these keys have no value yet: "
            + ", ".join(missing)
            + "; give them on the command line as KEY=VALUE, in Python to overt.configure"
        )


def _missing_keys(node: Any) -> Iterator[str]:
    """Yield what `OmegaConf.missing_keys` does, in a quarter of its time."""
    for index in range(len(node)) if OmegaConf.is_list(node) else list(node):
        child = node._get_node(index)
        if _is_settled(child):
            continue
        if child._is_interpolation():
            if OmegaConf.is_missing(node, index):
                yield node._get_full_key(index)
                continue
            child = node[index]  # or refused
        elif child._is_missing():
            yield node._get_full_key(index)
            continue
        if OmegaConf.is_config(child) and not child._is_none():
            yield from _missing_keys(child)


def _leave_data_open(data: Any) -> None:
    """Give every path of the section `data` that is missing, and a null `root`, a stand-in."""
    if not OmegaConf.is_dict(data):
        return
    unset = {key for key in map(str, data) if OmegaConf.is_missing(data, key)}
    if "root" in data and "root" not in unset and data.root is None:
        unset.add("root")
    for key in unset:
        # A number has no stand-in: it stays missing, and is refused as such.
        with suppress(ValidationError):
            data[key] = NO_DATA


def _refuse_nonfinite(values: Any, prefix: str = "") -> None:
    """Refuse NaN and Inf for every number, unless its field has `metadata={"finite": False}`."""
    hints: dict[str, Any] = {}
    if OmegaConf.is_list(values):
        children = [(f"{prefix}[{index}]", index) for index in range(len(values))]
    else:
        kind: Any = OmegaConf.get_type(values)
        hints, exempt = _numbers_of(kind) if kind is not None else ({}, frozenset())
        keys = [key for key in values if key not in exempt]
        children = [(f"{prefix}.{key}" if prefix else str(key), key) for key in keys]
    for name, key in children:
        node = values._get_node(key)
        if _is_settled(node) and not isinstance(node._value(), int | float):
            continue  # text or null
        try:
            value = values[key]
        except OmegaConfBaseException as error:  # an unresolved interpolation
            raise ConfigError(f"{name}: {str(error).splitlines()[0]}") from error
        if OmegaConf.is_config(value):
            _refuse_nonfinite(value, name)
        elif isinstance(value, float):
            finite(name, value, or_null=type(None) in get_args(hints.get(str(key))))
        elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise ConfigError(
                f"{name} is an integer of {value.bit_length()} bits; use up to {LARGEST_INTEGER}"
            )


@cache
def _numbers_of(kind: type) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the types of a section's fields, and those that may be NaN or Inf."""
    if not is_dataclass(kind):
        return {}, frozenset()
    exempt = [each.name for each in fields(kind) if not each.metadata.get("finite", True)]
    return get_type_hints(kind), frozenset(exempt)


def _check_allowed(key: str, target: str, allowed: Sequence[str]) -> None:
    if not any(target.startswith(package + ".") for package in allowed):
        if target.startswith("__main__."):
            raise ConfigError(
                f"{key}={target} is a class of a notebook or script, which nothing else can "
                "import; resume with the same call of overt.train there, or move the class into a "
                "package and name that with --package FOLDER"
            )
        raise ConfigError(
            f"{key}={target} is not allowed: a configuration may name classes of "
            f"{', '.join(allowed)} only. If this is your own package, name it on the command line: "
            "--package FOLDER"
        )


def import_target(key: str, target: str) -> Any:
    """The object behind a dotted path; the original error is shown where its module fails."""
    module_name, _, name = target.rpartition(".")
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{key}={target}: importing {module_name} failed with {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, name):
        public = [word for word in dir(module) if not word.startswith("_")]
        raise ConfigError(f"{key}={target}: {module_name} has no {name}{nearest(name, public)}")
    return getattr(module, name)


def dotted_keys(values: Any, prefix: str = "") -> Iterator[str]:
    """Yield every key below a node, sections included."""
    for key in values:
        name = f"{prefix}{key}"
        yield name
        child = values._get_node(key) if isinstance(values, DictConfig) else None
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
            yield from dotted_keys(child, name + ".")


def build_recipe(config: Config) -> Recipe:
    """Return the recipe's class, made from its settings. This is where torch is first imported."""
    kind: Any = config.recipe_class
    if kind is None:
        kind = import_target("recipe._target_", config.recipe._target_)
    check_recipe(kind)
    arguments = _constructor_arguments(kind, config.settings)
    recipe: Recipe = kind(*arguments)
    check_instance(recipe)
    if config.training.device == "mps" and not recipe.runs_on_mps:
        raise ConfigError(
            f"training.device=mps: {kind.__qualname__} does not say that it works without float64, "
            "which Apple's GPUs lack; use training.device=cpu, or set runs_on_mps = True in a "
            "recipe of your own"
        )
    return recipe


def _constructor_arguments(kind: type[Recipe], settings: Any) -> tuple[Any, ...]:
    """Return the settings where `__init__` takes them; a recipe without any may do without."""
    signature = inspect.signature(kind)
    for arguments in ((settings,), ()):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return arguments
    raise ConfigError(
        f"{kind.__qualname__}.__init__{signature} cannot be called with the settings alone; write "
        "__init__(self, settings), or none (`overt docs add_a_recipe`)"
    )


def schema_of(config: Config | None) -> dict[str, type]:
    """Dotted section name to the dataclass that describes it; None: the engine's sections only."""
    sections: dict[str, type] = {}

    def visit(prefix: str, kind: Any) -> None:
        if is_dataclass(kind):
            sections[prefix] = cast(type, kind)
            for name, hint in get_type_hints(kind).items():
                visit(f"{prefix}.{name}" if prefix else name, hint)
        if isinstance(kind, UnionType):  # a section that may be null
            for choice in get_args(kind):
                visit(prefix, choice)

    visit("", Schema)
    if config is None:
        return sections
    for name, hint in get_type_hints(type(config.settings)).items():
        visit(name, hint)
    visit("schedule", import_target("schedule._target_", config.schedule["_target_"]))
    return sections
