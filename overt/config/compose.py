"""From the command line to a checked, typed configuration: compose, check, refuse with the remedy.

Hydra composes YAML groups, the dataclasses of `schema.py` and of the recipe check every key, and
nothing after `load` sees a DictConfig. Never imports torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from overt.config.schema import (
    CheckpointSection,
    LoggingSection,
    OptimizerSection,
    RecipeSection,
    Schema,
    TrainingSection,
)
from overt.errors import ConfigError, nearest
from overt.recipe import Recipe, check_recipe
from overt.schedule import build_schedule

CONF = Path(__file__).parents[1] / "conf"
GROUPS = (
    "recipe", "model", "data", "optimizer", "schedule", "logging", "checkpoint", "evaluation"
)  # fmt: skip
RECIPE_SECTIONS = ("model", "data", "loss", "evaluation")


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


def load(
    overrides: Sequence[str],
    config_file: str | None = None,
    packages: Sequence[str] = (),
) -> Config:
    """Compose (or read `config_file`), check, and return the configuration of one run.

    `packages` are folders of the user's own recipes: a Python package whose name is thereby
    allowed in `_target_`, with YAML groups in its `conf` folder.
    """
    allowed = ["overt", "torch.optim", *map(add_package, packages)]
    values = compose_values(overrides, config_file, packages)
    return check(values, allowed)


def compose_values(
    overrides: Sequence[str], config_file: str | None = None, packages: Sequence[str] = ()
) -> DictConfig:
    """The merged YAML values with the overrides applied, not yet checked by the schema."""
    parsed = _parse(overrides)
    if config_file is not None:
        return _read_file(config_file, parsed)
    search = [Path(package).resolve() / "conf" for package in packages]
    groups = [item for item in parsed if item.key_or_group in GROUPS]
    if not any(item.key_or_group == "recipe" for item in groups):
        names = ", ".join(_options("recipe", search))
        raise ConfigError(f"no recipe was chosen; add recipe=NAME with one of: {names}")
    for item in groups:
        _check_option(item, search)
    # First without the values: what is left then is what may be overridden.
    values = _compose([item.input_line or "" for item in groups], search)
    single = [item for item in parsed if item.key_or_group not in GROUPS]
    for item in single:
        if not (item.is_add() or item.is_force_add()):
            _check_known(item.key_or_group, values)
    # Composing is slow. A second time is only needed for what adds or takes away keys.
    if any(item.type is not OverrideType.CHANGE or item.package for item in single):
        return _compose(list(overrides), search)
    for item in single:
        _update(values, item)
    return values


def _read_file(config_file: str, parsed: list[Override]) -> DictConfig:
    path = Path(config_file)
    if not path.is_file():
        raise ConfigError(f"--config {config_file}: there is no such file")
    try:
        values = OmegaConf.load(path)
    except Exception as error:
        raise ConfigError(f"--config {config_file} is not readable YAML: {error}") from error
    if not isinstance(values, DictConfig):
        raise ConfigError(f"--config {config_file} holds no mapping of keys to values")
    _fill_in(values)
    for item in parsed:
        if item.key_or_group in GROUPS:
            raise ConfigError(
                f"{item.input_line}: groups are chosen when a configuration is composed; with "
                f"--config give single keys, such as {item.key_or_group}.KEY=VALUE"
            )
        _check_known(item.key_or_group, values)
        OmegaConf.update(values, item.key_or_group, item.value())
    return values


def _fill_in(values: DictConfig) -> None:
    """Give keys of the engine that came after the file was written the engine's own values."""
    sections = {"training": "train.yaml"}
    sections |= {name: f"{name}/default.yaml" for name in ("logging", "checkpoint")}
    for section, name in sections.items():
        own = OmegaConf.load(CONF / name)
        if section == "training":
            own = own.training
        if isinstance(values.get(section), DictConfig):
            values[section] = OmegaConf.merge(own, values[section])


def _parse(overrides: Sequence[str]) -> list[Override]:
    parsed = [_parse_one(text) for text in overrides]
    for item in parsed:
        if item.is_sweep_override():
            raise ConfigError(
                f"{item.input_line} names several values; add -m to run one training for each"
            )
    return parsed


def _parse_one(text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ConfigError(
            f"cannot read {text!r} on the command line; write KEY=VALUE, for example "
            f"training.num_steps=1000 ({str(error).splitlines()[0]})"
        ) from error


def _compose(overrides: list[str], search: list[Path]) -> DictConfig:
    if search:
        paths = ",".join(f'"file://{path}"' for path in search)
        overrides = [*overrides, f"hydra.searchpath=[{paths}]"]
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("train", overrides)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"the configuration does not compose: {error}") from error


def _update(values: DictConfig, item: Override) -> None:
    try:
        OmegaConf.update(values, item.key_or_group, item.value(), merge=True)
    except (OmegaConfBaseException, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{item.input_line} does not fit: {reason}") from error


def _options(group: str, search: list[Path]) -> list[str]:
    return sorted({path.stem for root in (CONF, *search) for path in (root / group).glob("*.yaml")})


def _check_option(item: Override, search: list[Path]) -> None:
    options, chosen = _options(item.key_or_group, search), str(item.value())
    if chosen not in options and not item.is_delete():
        raise ConfigError(
            f"{item.key_or_group}={chosen}: there is no such {item.key_or_group}"
            f"{nearest(chosen, options)}; there are {', '.join(options)}. Your own live in a "
            "folder that is named by --package FOLDER"
        )


def _check_known(key: str, values: DictConfig) -> None:
    known = list(_flatten(values))
    if not any(name == key or name.startswith(key + ".") for name in known):
        raise ConfigError(f"there is no key {key}{nearest(key, known)}; `overt config` lists all")


def _flatten(values: Any, prefix: str = "") -> Iterator[str]:
    for key in values:
        name = f"{prefix}{key}"
        yield name
        child = values._get_node(key) if isinstance(values, DictConfig) else None
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
            yield from _flatten(child, name + ".")


def check(
    values: DictConfig, allowed: Sequence[str], classes: Mapping[str, type] | None = None
) -> Config:
    """Merge the values into the typed schema, the recipe's own part included, or refuse.

    `classes` are those of `recipe._target_` and `recipe.settings` that need not be imported.
    """
    classes = classes or {}
    checked = cast(DictConfig, _merge(OmegaConf.structured(Schema), values))
    _refuse_missing(checked, ("recipe",))
    for key in ("recipe._target_", "recipe.settings", "optimizer._target_"):
        _check_allowed(key, str(OmegaConf.select(checked, key)), allowed)
    settings_class = classes.get("recipe.settings") or import_target(
        "recipe.settings", checked.recipe.settings
    )
    # A recipe may do without a section; what nobody gave a value needs no name either.
    sections = {name: checked[name] for name in RECIPE_SECTIONS if values.get(name)}
    settings = _merge(OmegaConf.structured(settings_class), sections)
    for name in RECIPE_SECTIONS:
        checked[name] = settings.get(name, {})
    _refuse_missing(checked)
    engine = OmegaConf.masked_copy(
        checked, [field.name for field in fields(Schema) if field.name not in RECIPE_SECTIONS]
    )
    parts = {str(name): _to_object(engine[name]) for name in engine}
    for tracker in parts["logging"].trackers:
        _check_allowed("logging.trackers", tracker["_target_"], allowed)
    # Whatever the schedule refuses, it refuses now: the numbers here only stand in.
    build_schedule(parts["schedule"], base_value=1.0, epochs=1.0, steps_per_epoch=1)
    decay = parts["optimizer"].weight_decay_schedule
    if decay is not None:
        build_schedule(decay, 1.0, 1.0, 1, where="optimizer.weight_decay_schedule")
    # A recipe's section may refer to any other, ${training.cuda_graph} for example.
    whole = cast(DictConfig, OmegaConf.create(OmegaConf.to_container(checked, resolve=True)))
    settings = _merge(settings, {name: whole[name] for name in sections})
    return Config(
        **parts,
        settings=_to_object(settings),
        text=OmegaConf.to_yaml(whole),
        recipe_class=classes.get("recipe._target_"),
    )


def _merge(schema: Any, values: Any) -> Any:
    try:
        return OmegaConf.merge(schema, values)
    except ConfigKeyError as error:
        key = str(error.full_key)
        raise ConfigError(f"there is no key {key}{nearest(key, list(_flatten(schema)))}") from error
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{error.full_key or 'the configuration'}: {reason}") from error


def _to_object(node: Any) -> Any:
    """Typed dataclasses (their own checks run here) or plain values."""
    if not OmegaConf.is_config(node):
        return node
    try:
        return OmegaConf.to_object(node)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from error


def _refuse_missing(values: DictConfig, sections: Sequence[str] = ()) -> None:
    missing = [
        key
        for key in sorted(OmegaConf.missing_keys(values))
        if not sections or key.partition(".")[0] in sections
    ]
    if missing:
        raise ConfigError(
            "these keys have no value yet: "
            + ", ".join(missing)
            + "; give them on the command line as KEY=VALUE, in Python to overt.configure"
        )


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
            f"{', '.join(allowed)} only. If this is your own package, say so on the command line: "
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


def add_package(folder: str) -> str:
    """Make the Python package in `folder` importable; its name, now allowed in `_target_`."""
    path = Path(folder).resolve()
    if not (path / "__init__.py").is_file():
        raise ConfigError(
            f"--package {folder}: there is no Python package there (no {path / '__init__.py'})"
        )
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
        # Loader processes start anew and find the package the same way.
        inherited = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path.parent), inherited]))
    return path.name


def build_recipe(config: Config) -> Recipe:
    """The recipe's class, made from its settings. This is where torch is first imported."""
    kind: Any = config.recipe_class
    if kind is None:
        kind = import_target("recipe._target_", config.recipe._target_)
    check_recipe(kind)
    has_settings = kind.__init__ is not object.__init__
    recipe: Recipe = kind(config.settings) if has_settings else kind()
    return recipe


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """`a=1,2 b=3` to [[a=1, b=3], [a=2, b=3]]: one list of overrides for each run of a sweep."""
    runs: list[list[str]] = [[]]
    for text in overrides:
        item = _parse_one(text)
        if not item.is_sweep_override():
            runs = [[*run, text] for run in runs]
            continue
        try:
            values = list(item.sweep_string_iterator())
        except HydraException as error:
            raise ConfigError(f"{text} does not list its values; write KEY=A,B,C") from error
        choices = [f"{item.get_key_element()}={value}" for value in values]
        runs = [[*run, choice] for run in runs for choice in choices]
    return runs


def differences(before: str, after: str, ignore: Sequence[str]) -> list[tuple[str, Any, Any]]:
    """Keys that differ between two resolved configurations, but for those below `ignore`."""
    old, new = (_leaves(OmegaConf.to_container(OmegaConf.create(text))) for text in (before, after))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return [
        (key, old.get(key), new.get(key))
        for key in keys
        if not any(key == name or key.startswith(name + ".") for name in ignore)
    ]


def _leaves(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {prefix.rstrip("."): values}
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        leaves.update(_leaves(value, f"{prefix}{key}."))
    return leaves


def schema_of(config: Config) -> dict[str, type]:
    """Dotted section name to the dataclass that describes it, for `overt config --explain`."""
    found: dict[str, type] = {}

    def visit(prefix: str, kind: Any) -> None:
        if is_dataclass(kind):
            found[prefix] = cast(type, kind)
            for name, hint in get_type_hints(kind).items():
                visit(f"{prefix}.{name}" if prefix else name, hint)

    visit("", Schema)
    for name, hint in get_type_hints(type(config.settings)).items():
        visit(name, hint)
    visit("schedule", import_target("schedule._target_", config.schedule["_target_"]))
    return found
