"""A schedule from a section of the configuration: its class, its options, its levels.

Never imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from typing import Any

from overt.checks import finite
from overt.errors import ConfigError, nearest
from overt.schedule import (
    ConstantScheduler,
    CosineScheduler,
    EMAScheduler,
    ExponentialScheduler,
    HierarchicalScheduler,
    LinearScheduler,
    OneCycleScheduler,
    Scheduler,
)

_KINDS: dict[str, Any] = {
    f"overt.schedule.{kind.__name__}": kind
    for kind in (
        ConstantScheduler, CosineScheduler, EMAScheduler, ExponentialScheduler,
        HierarchicalScheduler, LinearScheduler, OneCycleScheduler,
    )
}  # fmt: skip
_FROM_ENGINE = ("base_value", "epochs", "steps_per_epoch")
_NUMBERS = ("int", "float", "float | None")  # types of options that are checked here


def build_schedule(
    section: Mapping[str, Any],
    base_value: float,
    epochs: float,
    steps_per_epoch: int,
    where: str = "schedule",
    further: tuple[str, ...] = (),
) -> Scheduler | HierarchicalScheduler:
    """The schedule that a section of the configuration names in `_target_`.

    For HierarchicalScheduler, `levels` is a list of such sections, and each of them may multiply
    the base value by its own `base_factor`. `further` options are allowed, but read elsewhere.

    A class of another package is a dataclass with the fields base_value, epochs and
    steps_per_epoch, and further options; called with a step it returns the value.
    """
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where}={section!r}; give a section with `_target_`")
    options = {str(name): value for name, value in section.items()}
    target = options.pop("_target_", None)
    kind = _KINDS.get(str(target)) or _import(target, where)
    if kind is HierarchicalScheduler:
        return _build_levels(options, base_value, epochs, steps_per_epoch, where)
    allowed = {x.name: x for x in fields(kind) if x.init and x.name not in _FROM_ENGINE}
    _refuse_unknown(options, [*allowed, *further], where)
    missing = [n for n, x in allowed.items() if _has_no_default(x) and n not in options]
    if missing:
        raise ConfigError(f"{where}.{missing[0]} is missing; {kind.__name__} needs a number there")
    for name, value in options.items():
        _check_number(f"{where}.{name}", value, allowed[name].type)
    try:
        built: Scheduler = kind(
            base_value=base_value, epochs=epochs, steps_per_epoch=steps_per_epoch, **options
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return built


def _import(target: object, where: str) -> Any:
    """Return a schedule of another package; the configuration has checked that it is allowed."""
    module, _, name = str(target).rpartition(".")
    try:
        kind = getattr(import_module(module), name, None) if module else None
    except ImportError as error:
        raise ConfigError(
            f"{where}._target_={target}: importing {module} failed with {type(error).__name__}: "
            f"{error}"
        ) from error
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise ConfigError(
            f"{where}._target_={target!r} is not a schedule{_allowed(target, _KINDS)}, or a "
            f"dataclass of your package with the fields {', '.join(_FROM_ENGINE)} and "
            "__call__(self, step)"
        )
    field_names = {field.name for field in fields(kind) if field.init}
    missing = [name for name in _FROM_ENGINE if name not in field_names]
    if missing or not any("__call__" in vars(owner) for owner in kind.__mro__):
        raise ConfigError(
            f"{where}._target_={target!r} lacks {', '.join(missing) or '__call__'}; a schedule is "
            f"a dataclass with the fields {', '.join(_FROM_ENGINE)} and __call__(self, step)"
        )
    return kind


def _build_levels(
    options: dict[str, Any], base_value: float, epochs: float, steps_per_epoch: int, where: str
) -> HierarchicalScheduler:
    _refuse_unknown(options, ("levels",), where)
    levels = options.get("levels")
    if not isinstance(levels, list | tuple) or not levels:
        raise ConfigError(f"{where}.levels={levels!r}; give a list of schedules, one per level")
    built: list[Scheduler] = []
    for index, level in enumerate(levels):
        level_key = f"{where}.levels[{index}]"
        if not isinstance(level, Mapping):
            raise ConfigError(f"{level_key}={level!r}; give a section with `_target_`")
        factor = level.get("base_factor", 1.0)
        _check_number(f"{level_key}.base_factor", factor, "float")
        options_of_level = {name: value for name, value in level.items() if name != "base_factor"}
        value = base_value * factor
        scheduler = build_schedule(
            options_of_level, value, epochs, steps_per_epoch, level_key, ("base_factor",)
        )
        if isinstance(scheduler, HierarchicalScheduler):
            raise ConfigError(f"{level_key}._target_ has levels; levels do not nest")
        built.append(scheduler)
    return HierarchicalScheduler(built)


def _refuse_unknown(options: Iterable[str], allowed: Iterable[str], where: str) -> None:
    for name in options:
        if name in _FROM_ENGINE:
            raise ConfigError(
                f"{where}.{name} follows from optimizer.lr and the length of training; remove it"
            )
        if name not in allowed:
            # Of a list, as `levels` is, no single option can be removed on the command line.
            remedy = (
                "remove it there"
                if "[" in where
                else f"remove an option of another schedule with '~{where}.{name}'"
            )
            raise ConfigError(
                f"{where}.{name} is not an option here{_allowed(name, allowed)}; {remedy}"
            )


def _allowed(name: object, names: Iterable[str]) -> str:
    names = list(names)
    return f"{nearest(str(name), names)}; allowed: {', '.join(names)}"


def _has_no_default(option: Any) -> bool:
    return option.default is MISSING and option.default_factory is MISSING


def _check_number(where: str, value: object, kind: object) -> None:
    kind = getattr(kind, "__name__", kind)  # of a module without postponed annotations
    if (value is None and kind == "float | None") or kind not in _NUMBERS:
        return
    expected, types = ("a whole number", int) if kind == "int" else ("a number", int | float)
    if not isinstance(value, types) or isinstance(value, bool):
        raise ConfigError(f"{where}={value!r}; give {expected}")
    finite(where, value)
