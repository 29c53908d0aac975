"""From the command line to composed values: YAML groups, files, overrides and sweeps.

Hydra composes, `checked.py` checks. Never imports torch.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from overt.config.checked import Config, check, dotted_keys, refuse_name
from overt.config.environment import allow_in
from overt.config.overrides import parse_override
from overt.config.plugins import installed_packages
from overt.errors import ConfigError, nearest
from overt.files.yaml_text import parse_yaml, read_yaml

CONF = Path(__file__).parents[1] / "conf"
GROUPS = (
    "recipe", "model", "data", "optimizer", "schedule", "logging", "checkpoint", "evaluation"
)  # fmt: skip
MANY = 20  # options of a group, too many to list beside the nearest one
OPEN = ("schedule", "optimizer.arguments", "training.evaluate_sets")  # no file lists all keys
ABSENT = object()
# Keys of older configurations, within their section.
RENAMED = {
    "data.labelled": "data.labeled",
    "data.synthetic.fixed_colours": "data.synthetic.fixed_colors",
    "data.procedural.grey": "data.procedural.gray",
}


def load(
    overrides: Sequence[str],
    config_file: str | None = None,
    packages: Sequence[str] = (),
    needs_data: bool = True,
    sections: Mapping[str, Any] | None = None,
) -> Config:
    """Compose (or read `config_file`), check, and return the configuration of one run.

    `packages` are folders of the user's own recipes: a Python package whose name is thereby
    allowed in `_target_`, with YAML groups in its `conf` folder. With `needs_data=False` the
    section `data` may name no data set: a model is built without one. `sections` are those of an
    earlier run, see `compose_values`.
    """
    allowed = allowed_packages(packages)
    _refuse_removal(overrides)
    values = compose_values(overrides, config_file, packages, sections)
    try:
        return check(values, allowed, needs_data, typed=_typed(overrides))
    except ConfigError as error:
        _refuse_foreign_group(error, overrides)
        raise


def _refuse_foreign_group(error: ConfigError, overrides: Sequence[str]) -> None:
    """Name the override that brought keys which the recipe does not have, or that refer to such."""
    for text in overrides:
        group = text.partition("=")[0]
        foreign = rf"unknown key {group}\.|{group}\.\S+: Interpolation key"
        if group in ("model", "data", "evaluation") and re.match(foreign, str(error)):
            raise ConfigError(
                f"{text} does not fit this recipe ({error}). `overt config` lists the groups; "
                f"choose another {group}"
            ) from error


def allowed_packages(folders: Sequence[str]) -> list[str]:
    """Return the packages whose classes may be named; those in `folders` become importable."""
    return ["overt", "torch.optim", *map(add_package, folders), *installed_packages()]


def compose_values(
    overrides: Sequence[str],
    config_file: str | None = None,
    packages: Sequence[str] = (),
    sections: Mapping[str, Any] | None = None,
) -> DictConfig:
    """Return the merged YAML values with the overrides applied, not yet checked by the schema.

    `sections` take the place of the recipe's, unless an override chooses a group of that name.
    Where a value in them is missing (???), that of the recipe stays.
    """
    allow_in(list(overrides))
    parsed = _parse(overrides)
    if config_file is not None:
        return _read_file(config_file, parsed)
    roots = _package_roots(packages)
    search = [root / "conf" for root in roots if (root / "conf").is_dir()]
    groups = [item for item in parsed if item.key_or_group in GROUPS]
    if not any(item.key_or_group == "recipe" for item in groups):
        names = ", ".join(_options("recipe", search))
        raise ConfigError(f"no recipe was chosen; add recipe=NAME with one of: {names}")
    for item in groups:
        _check_option(item, search)
    # First without the values: what is left then is what may be overridden.
    values = _compose([item.input_line or "" for item in groups], search)
    single = [item for item in parsed if item.key_or_group not in GROUPS]
    if sections is not None:
        chosen = {item.key_or_group for item in groups}
        _put_sections(values, {name: each for name, each in sections.items() if name not in chosen})
        _apply(values, single)
        return values
    for item in single:
        if not (item.is_add() or item.is_force_add()):
            _check_known(item.key_or_group, values)
    # Composing is slow. A second pass is only needed for overrides that add or remove keys.
    if any(item.type is not OverrideType.CHANGE or item.package for item in single):
        return _compose([item.input_line or "" for item in parsed], search)
    for item in single:
        _update(values, item)
    return values


def group_options(packages: Sequence[str] = ()) -> dict[str, list[Path]]:
    """Return the files of each configuration group, of overt and of packages."""
    roots = [CONF, *(root / "conf" for root in _package_roots(packages))]
    return {
        group: sorted(
            {path.stem: path for root in roots for path in (root / group).glob("*.yaml")}.values(),
            key=lambda path: path.stem,
        )
        for group in GROUPS
    }


def chosen_options(overrides: Sequence[str], packages: Sequence[str] = ()) -> dict[str, str]:
    """Return which option of each group a composition takes, by Hydra's own record."""
    load(overrides, packages=packages)  # errors are worded as for a run
    search = [root / "conf" for root in _package_roots(packages)]
    words = [parse_override(text).input_line or "" for text in overrides]
    composed = _compose(words, search, with_hydra=True)
    choices = composed.hydra.runtime.choices
    return {group: str(choices[group]) for group in GROUPS if group in choices}


def _package_roots(packages: Sequence[str]) -> list[Path]:
    return [*(Path(package).resolve() for package in packages), *installed_packages().values()]


def _read_file(config_file: str, parsed: list[Override]) -> DictConfig:
    path = Path(config_file)
    if not path.is_file():
        raise ConfigError(f"--config {config_file}: no such file")
    values = read_yaml(path)
    if not isinstance(values, DictConfig):
        raise ConfigError(f"--config {config_file} is not a mapping of keys to values")
    _rename_old_keys(values)
    _fill_in(values)
    for item in parsed:
        if item.key_or_group in GROUPS:
            raise ConfigError(
                f"{item.input_line}: a stored configuration, such as that of a checkpoint, takes "
                f"single keys, such as {item.key_or_group}.KEY=VALUE; to choose groups, add "
                "recipe=NAME"
            )
    _apply(values, parsed)
    return values


def _put_sections(values: DictConfig, sections: Mapping[str, Any]) -> None:
    """Put sections in the place of the composed ones, but for their missing values."""
    composed: Any = OmegaConf.to_container(values)
    OmegaConf.set_struct(values, False)
    for name, section in sections.items():
        try:
            values[name] = _filled(section, composed.get(name))
        except OmegaConfBaseException as error:
            raise ConfigError(f"{name}: {str(error).splitlines()[0]}") from error
    _rename_old_keys(values)


def _filled(stored: Any, composed: Any) -> Any:
    """Return plain values, with composed ones where they are missing."""
    if isinstance(stored, Mapping):
        known = composed if isinstance(composed, Mapping) else {}
        return {key: _filled(value, known.get(key, MISSING)) for key, value in stored.items()}
    return composed if stored == MISSING else stored


def _apply(values: DictConfig, items: Sequence[Override]) -> None:
    """Apply overrides of single keys, one after the other."""
    for item in items:
        if not (item.is_add() or item.is_force_add()):
            _check_known(item.key_or_group, values)
        if item.is_delete():
            _delete(values, item)
        else:
            _update(values, item)


def _delete(values: DictConfig, item: Override) -> None:
    section, _, name = item.key_or_group.rpartition(".")
    node = OmegaConf.select(values, section) if section else values
    if not isinstance(node, DictConfig) or name not in node:
        raise ConfigError(f"{item.input_line}: the file of --config has no key {item.key_or_group}")
    del node[name]


def _rename_old_keys(values: DictConfig) -> None:
    """Give keys that have another name since the file was written the new one."""
    for old, new in RENAMED.items():
        section, _, key = old.rpartition(".")
        node = OmegaConf.select(values, section, throw_on_missing=False)
        if isinstance(node, DictConfig) and key in node:
            node[new.rpartition(".")[2]] = node.pop(key)


def _fill_in(values: DictConfig) -> None:
    """Give keys of the engine that came after the file was written the engine's own values."""
    sections = {"training": "train.yaml"}
    sections |= {name: f"{name}/default.yaml" for name in ("logging", "checkpoint")}
    for section, name in sections.items():
        defaults = OmegaConf.load(CONF / name)
        if section == "training":
            defaults = defaults.training
        if isinstance(values.get(section), DictConfig):
            values[section] = OmegaConf.merge(defaults, values[section])


def _parse(overrides: Sequence[str]) -> list[Override]:
    parsed = [parse_override(text) for text in overrides]
    for item in parsed:
        if item.is_sweep_override():
            raise ConfigError(
                f"{item.input_line} names several values; add -m to run one training for each"
            )
    return parsed


def _typed(overrides: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the words behind numbers and booleans by key, as Hydra reads them and as typed."""
    typed = {}
    for item in _parse(overrides):
        value = item.value()
        if isinstance(value, int | float) and "(" not in (text := item.get_value_string()):
            typed[item.key_or_group] = str(value), text.strip()
    return typed


def _compose(overrides: list[str], search: list[Path], with_hydra: bool = False) -> DictConfig:
    if search:
        paths = ",".join(f'"file://{path}"' for path in search)
        overrides = [*overrides, f"hydra.searchpath=[{paths}]"]
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("train", overrides, return_hydra_config=with_hydra)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"the configuration does not compose: {error}") from error


def _update(values: DictConfig, item: Override) -> None:
    try:
        # A mapping may bring keys that only the schema knows, such as names of evaluation sets.
        value = item.value()
        new = isinstance(value, dict)
        OmegaConf.update(values, item.key_or_group, value, merge=True, force_add=new)
    except (OmegaConfBaseException, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{item.input_line} does not fit: {reason}") from error


def _options(group: str, search: list[Path]) -> list[str]:
    return sorted({path.stem for root in (CONF, *search) for path in (root / group).glob("*.yaml")})


def _refuse_removal(overrides: Sequence[str]) -> None:
    """Refuse `~optimizer` and similar: every run needs these sections."""
    for text in overrides:
        group = text.removeprefix("~").partition("=")[0]
        if text.startswith("~") and group in GROUPS:
            raise ConfigError(
                f"{text} removes the section {group}, which every run needs; choose another one "
                f"by {group}=NAME ({', '.join(_options(group, []))}), or change single keys by "
                f"{group}.KEY=VALUE"
            )


def _check_option(item: Override, search: list[Path]) -> None:
    options, chosen = _options(item.key_or_group, search), str(item.value())
    if chosen not in options and not item.is_delete():
        near = nearest(chosen, options)
        # All recipes would hide the one that was meant.
        rest = "" if near and len(options) > MANY else f"; there are {', '.join(options)}"
        raise ConfigError(
            f"{item.key_or_group}={chosen}: no such {item.key_or_group}{near}{rest}. For those of "
            "your own package add --package FOLDER"
        )


def _check_known(key: str, values: DictConfig) -> None:
    allowed = list(dotted_keys(values))
    if re.search(r"\.\d+\.", key):  # of an entry of a list: optimizer.rules.0.lr_scale
        allowed += [key] if OmegaConf.select(values, key, default=ABSENT) is not ABSENT else []
    if not any(name == key or name.startswith(key + ".") for name in allowed):
        hint, parent = nearest(key, allowed), key.rpartition(".")[0]
        if parent in OPEN and not hint.startswith(f" (did you mean {parent}."):
            hint = f"; to give {parent} a key that it does not have yet, write +{key}=VALUE"
        raise ConfigError(f"unknown key {key}{hint}; `overt config recipe=NAME` lists all keys")


def add_package(folder: str) -> str:
    """Make the Python package in `folder` importable; its name, now allowed in `_target_`."""
    path = Path(folder).resolve()
    if not (path / "__init__.py").is_file():
        raise ConfigError(f"--package {folder}: not a Python package (no {path / '__init__.py'})")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
        # Loader processes are fresh ones and find the package the same way.
        inherited = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path.parent), inherited]))
    return path.name


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """`a=1,2 b=3` to [[a=1, b=3], [a=2, b=3]]: one list of overrides for each run of a sweep."""
    runs: list[list[str]] = [[]]
    for text in overrides:
        item = parse_override(text)
        if not item.is_sweep_override():
            runs = [[*run, text] for run in runs]
            continue
        try:
            values = list(item.sweep_string_iterator())
        except HydraException as error:
            raise ConfigError(f"{text} does not list its values; write KEY=A,B,C") from error
        # Hydra makes numbers of `2024_01_15` and `1e5`; folders are named as typed. Other keys keep
        # its form, after which the folders of runs are named.
        words = item.get_value_string().split(",")
        is_plain = item.value_type is ValueType.SIMPLE_CHOICE_SWEEP and len(words) == len(values)
        if item.key_or_group in ("exp_name", "output_dir") and is_plain:
            values = [word.strip() for word in words]
        choices = [f"{item.get_key_element()}={value}" for value in values]
        runs = [[*run, choice] for run in runs for choice in choices]
    return runs


def sweep_names(
    runs: Sequence[Sequence[str]], common: Sequence[str], exp_names: Sequence[str]
) -> list[str]:
    """Return the exp_name of each run of a sweep, all different, named after what differs.

    `common` are the words of the sweep's own command line, `exp_names` those the runs would have.
    """
    names: list[str] = []
    for index, (overrides, exp_name) in enumerate(zip(runs, exp_names, strict=True)):
        differing = [text for text in overrides if text not in common]
        label = re.sub(r"[^\w.,=+-]+", "_", ",".join(differing)) or str(index)
        name = f"{exp_name}/{label}"
        # `x/y` and `x_y` have the same label; in one folder the second would resume the first.
        while name in names:
            name += f"_{index}"
        refuse_name(name)
        names.append(name)
    return names


def differences(
    before: str, after: str, ignore: Sequence[str], defaults: Mapping[str, Any] | None = None
) -> list[tuple[str, Any, Any]]:
    """Return keys that differ between two resolved configurations, but for those below `ignore`.

    A list that is empty in one and unknown to the other, which is of an older overt, is the same.
    So is a key that the older one does not know, at its value in `defaults`: what came later does
    by default what was done before.
    """
    if before == after:
        return []
    defaults = defaults or {}
    new = _leaves_of(after)
    old = {RENAMED.get(key, key): value for key, value in _leaves_of(before).items()}
    keys = [
        key
        for key in {**old, **new}
        if old.get(key) != new.get(key)
        and not (old.get(key, []) == [] and new.get(key, []) == [])
        and not (key not in old and key in defaults and new[key] == defaults[key])
    ]
    return [
        (key, old.get(key), new.get(key))
        for key in keys
        if not any(key == name or key.startswith(name + ".") for name in ignore)
    ]


def defaults_of(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Return the defaults of a recipe's settings, a dataclass, by dotted key.

    Most keys have none, since their values live in YAML files; those that came later have one.
    """
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(settings) if dataclasses.is_dataclass(settings) else ():
        key, value = f"{prefix}{field.name}", getattr(settings, field.name, None)
        if dataclasses.is_dataclass(value):
            defaults |= defaults_of(value, f"{key}.")
        elif field.default_factory is not dataclasses.MISSING:
            defaults[key] = field.default_factory()
        elif field.default is not dataclasses.MISSING and field.default != MISSING:
            defaults[key] = field.default
    return defaults


@lru_cache(maxsize=2)  # a resume compares the same two more than once
def _leaves_of(text: str) -> dict[str, Any]:
    return _leaves(OmegaConf.to_container(parse_yaml(text, "config.yaml")))


def _leaves(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {prefix.rstrip("."): values}
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        leaves.update(_leaves(value, f"{prefix}{key}."))
    return leaves
