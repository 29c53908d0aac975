"""From Python values to a checked configuration: no YAML file, no words of a command line.

The defaults of `overt/conf` apply, and everything passes the checks of `compose.check`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from overt.config import RECIPE_SECTIONS, Config, check, compose_values, load
from overt.config.checked import schedule_targets
from overt.config.compose import allowed_packages
from overt.config.environment import allow_in
from overt.config.schema import (
    CheckpointSection,
    LoggingSection,
    OptimizerSection,
    TrainingSection,
)
from overt.errors import ConfigError, nearest
from overt.files.yaml_text import own_values
from overt.keywords import checked_keywords
from overt.recipe import Recipe, check_recipe

# Keys of a section; or the name of one of its YAML files, alone or with keys that differ.
Section: TypeAlias = Mapping[str, Any] | str | tuple[str, Mapping[str, Any]]


class Options(TypedDict, total=False):
    """The keyword arguments of `configure`."""

    settings: Any
    exp_name: str | None
    output_dir: str | Path | None
    seed: int | None
    training: Mapping[str, Any] | None
    optimizer: Section | None
    schedule: Section | None
    logging: Section | None
    checkpoint: Section | None
    packages: Sequence[str | Path]


@dataclass
class _Draft:
    """A configuration before its checks."""

    values: DictConfig
    allowed: list[str]  # packages whose classes may be named
    classes: dict[str, type] = field(default_factory=dict)  # key to a class that exists already

    def name_class(self, key: str, kind: type) -> None:
        """Write where a class is found, and keep it, since not every class can be imported."""
        OmegaConf.update(self.values, key, dotted(kind), force_add=True)
        self.classes[key] = kind
        self.allowed.append(kind.__module__)

    def check(self) -> Config:
        return check(self.values, self.allowed, classes=self.classes)


_SECTIONS = {
    "training": TrainingSection,
    "optimizer": OptimizerSection,
    "logging": LoggingSection,
    "checkpoint": CheckpointSection,
}


def _where_it_belongs(name: str) -> str:
    """Return the argument that takes a section of the recipe, or a key of another section."""
    if name in RECIPE_SECTIONS:
        return f" (did you mean settings={{{name!r}: ...}}?)"
    for section, kind in _SECTIONS.items():
        if name in [field.name for field in fields(kind)]:
            return f" (did you mean {section}={{{name!r}: ...}}?)"
    return ""


@checked_keywords(_where_it_belongs)
def configure(
    recipe: type[Recipe] | str | Config,
    *,
    settings: Any = None,
    exp_name: str | None = None,
    output_dir: str | Path | None = None,
    seed: int | None = None,
    training: Mapping[str, Any] | None = None,
    optimizer: Section | None = None,
    schedule: Section | None = None,
    logging: Section | None = None,
    checkpoint: Section | None = None,
    packages: Sequence[str | Path] = (),
) -> Config:
    """Return the checked configuration of a run.

    `recipe` is a class, the name of a YAML file (of overt, or below a folder of `packages`), or a
    configuration to change. `settings` is the recipe's dataclass, filled in, or a dict of its
    sections. Other sections are dicts of the keys that differ from the defaults; a string chooses
    another YAML file of that section: `optimizer="sgd"` or `optimizer=("sgd", {"lr": 0.1})`.

    Examples:
        >>> config = overt.configure("cotracker3_tiny", training={"num_steps": 10}, seed=3)
        >>> config.training.num_steps, config.seed
        (10, 3)
    """
    sections: dict[str, Any] = {
        "training": training,
        "optimizer": optimizer,
        "schedule": schedule,
        "logging": logging,
        "checkpoint": checkpoint,
    }
    recipe_settings, settings_class = _settings(settings)
    names, changes = _split({**sections, **recipe_settings})
    draft = _draft(recipe, names, folder_names(packages))
    if settings_class is not None:
        draft.name_class("recipe.settings", settings_class)
    elif recipe_settings and draft.classes.get("recipe.settings") is NoSettings:
        raise ConfigError(
            f"settings={settings!r}: no dataclass is declared for them; annotate it, "
            "`def __init__(self, settings: Settings)`, or give an instance of it"
        )
    scalars = {"exp_name": exp_name, "output_dir": output_dir, "seed": seed}
    changes |= {key: value for key, value in scalars.items() if value is not None}
    if isinstance(recipe, type) and "num_workers" not in changes.get("training", {}):
        _load_here(recipe, changes)
    for key, change in changes.items():
        _merge(draft, key, change)
    return draft.check()


def folder_names(packages: Sequence[str | Path]) -> list[str]:
    """Return the folders as text; a single one is refused, whose letters would be the folders."""
    given: Any = packages
    if isinstance(given, str | Path):
        raise ConfigError(f"packages={str(given)!r}; give a list: packages=[{str(given)!r}]")
    return [str(folder) for folder in packages]


def read(file: Path, recipe: type[Recipe] | None, packages: Sequence[str | Path]) -> Config:
    """Return the configuration that a run has stored; `recipe` is its class, where known."""
    folders = folder_names(packages)
    if recipe is None:
        return load([], str(file), folders)
    draft = _Draft(compose_values([], str(file)), allowed_packages(folders))
    _name_recipe(draft, recipe)
    return draft.check()


def dotted(kind: type) -> str:
    """Return the path by which a class is imported."""
    return f"{kind.__module__}.{kind.__qualname__}"


def is_importable(kind: type) -> bool:
    """Return whether another process can import a class: one of a notebook it cannot."""
    if "<locals>" in kind.__qualname__:
        return False
    # Other processes import the file of a script; a notebook has none.
    return kind.__module__ != "__main__" or script() is not None


def script() -> Path | None:
    """Return the file that this process runs; a notebook and standard input have none."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    return Path(path) if path is not None and Path(path).is_file() else None


def _draft(recipe: type[Recipe] | str | Config, names: list[str], packages: list[str]) -> _Draft:
    """Return the values that are there before those of the call."""
    allowed = allowed_packages(packages)
    match recipe:
        case Config():
            if names:
                raise ConfigError(
                    f"{names[0]}: YAML files are chosen together with a recipe; to change a "
                    "configuration give single keys as a dict"
                )
            draft = _Draft(OmegaConf.create(own_values(recipe.text)), allowed)
            # These have passed the check already.
            targets = [recipe.recipe._target_, recipe.recipe.settings, recipe.optimizer._target_]
            targets += [tracker["_target_"] for tracker in recipe.logging.trackers]
            targets += [*recipe.optimizer.rule_targets.values(), *schedule_targets(recipe).values()]
            draft.allowed += [target.rpartition(".")[0] for target in targets]
            draft.classes["recipe.settings"] = type(recipe.settings)
            if recipe.recipe_class is not None:
                draft.classes["recipe._target_"] = recipe.recipe_class
        case str():
            words = [f"recipe={recipe}", *names]
            draft = _Draft(compose_values(words, packages=packages), allowed)
        case _:
            check_recipe(recipe)
            draft = _Draft(compose_values(["~recipe", *names], packages=packages), allowed)
            OmegaConf.set_struct(draft.values, False)
            draft.values.recipe = {"name": recipe.__name__}
            _name_recipe(draft, recipe)
    OmegaConf.set_struct(draft.values, False)
    return draft


def _name_recipe(draft: _Draft, recipe: type[Recipe]) -> None:
    check_recipe(recipe)
    draft.name_class("recipe._target_", recipe)
    draft.name_class("recipe.settings", _settings_class(recipe))


@dataclass
class NoSettings:
    """Of a recipe that has none."""


def _settings_class(recipe: type[Recipe]) -> type:
    """Return the dataclass that `__init__` is annotated with."""
    hints = _hints(recipe.__init__).values()
    kinds = [hint for hint in hints if isinstance(hint, type) and is_dataclass(hint)]
    return kinds[0] if kinds else NoSettings


def _hints(annotated: Any) -> dict[str, Any]:
    try:
        return get_type_hints(annotated)
    except NameError:  # names of a function that has ended: nothing to go by
        return {}


def _settings(settings: Any) -> tuple[dict[str, Any], type | None]:
    """Return the sections of the recipe, and the class of the dataclass that holds them."""
    if settings is None:
        return {}, None
    if isinstance(settings, Mapping):
        names, kind = list(settings), None
    elif is_dataclass(settings) and not isinstance(settings, type):
        names, kind = [field.name for field in fields(settings)], type(settings)
    else:
        raise ConfigError(
            f"settings={settings!r}; give the recipe's dataclass, filled in, or a dict of its "
            f"sections {', '.join(RECIPE_SECTIONS)}"
        )
    for name in names:
        if name not in RECIPE_SECTIONS:
            raise ConfigError(
                f"settings.{name} is not a section of a recipe{nearest(name, RECIPE_SECTIONS)}; "
                f"allowed: {', '.join(RECIPE_SECTIONS)}: put single settings into a dataclass "
                "of one of these (see `overt docs python`)"
            )
    if kind is None:
        return dict(settings), None
    return {name: getattr(settings, name) for name in names}, kind


def _split(sections: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return names of YAML files as words of a command line, and keys by section."""
    names: list[str] = []
    changes: dict[str, Any] = {}
    for key, section in sections.items():
        match section:
            case None | "???":
                continue
            case str():
                names.append(f"{key}={section}")
            case (str() as name, Mapping() as values):
                names.append(f"{key}={name}")
                changes[key] = values
            case Mapping():
                changes[key] = section
            case _ if is_dataclass(section) and not isinstance(section, type):
                changes[key] = section
            case _:
                raise ConfigError(
                    f"{key}={section!r}; give a dict of its keys, or the name of a YAML file"
                )
    return names, changes


def _load_here(recipe: type[Recipe], changes: dict[str, Any]) -> None:
    """Choose no loader processes where they could not import the recipe."""
    if not is_importable(recipe):
        changes["training"] = {**changes.get("training", {}), "num_workers": 0}
        warnings.warn(
            f"{recipe.__name__} is defined in a notebook or a function, where loader processes "
            "cannot import it: training.num_workers=0. Move it into a module to load in parallel.",
            stacklevel=3,
        )


def _merge(draft: _Draft, key: str, change: Any) -> None:
    """Put values over those of one section."""
    plain = _plain(draft, change)
    if isinstance(plain, dict) and key != "schedule":  # it validates its own options
        _refuse_unknown(draft, key, plain)
    # Arguments of one class do not apply to another.
    target = plain.get("_target_") if isinstance(plain, dict) else None
    if key == "schedule" and target not in (None, draft.values[key]._target_):
        draft.values[key] = {}
    if key == "optimizer" and target not in (None, draft.values[key]._target_):
        draft.values[key].arguments = {}
    try:
        draft.values.merge_with({key: plain})
    except (OmegaConfBaseException, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{getattr(error, 'full_key', None) or key}: {reason}") from error


def _refuse_unknown(draft: _Draft, section: str, keys: Mapping[str, Any]) -> None:
    """Refuse a key that neither the defaults nor the recipe's dataclass has."""
    allowed = [
        f"{name!s}.{key!s}"
        for name, values in draft.values.items()
        if isinstance(values, DictConfig)
        for key in values
    ]
    kind = draft.classes.get("recipe.settings")
    for name, hint in _hints(kind).items() if kind is not None else ():
        allowed += [f"{name}.{field.name}" for field in fields(hint)] if is_dataclass(hint) else []
    for key in keys:
        name = f"{section}.{key}"
        if name not in allowed:
            raise ConfigError(f"unknown key {name}{nearest(name, allowed)}")


def _plain(draft: _Draft, value: Any) -> Any:
    """Return values as YAML has them: no paths, tuples or classes."""
    if isinstance(value, str):
        allow_in(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, type):
        draft.allowed.append(value.__module__)
        return dotted(value)
    if is_dataclass(value):
        return {field.name: _plain(draft, getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(draft, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(draft, item) for item in value]
    return value
