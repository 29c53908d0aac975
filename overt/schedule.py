"""Schedules as pure functions of the optimizer step: learning rate, weight decay, EMA momentum.

Step 0 is the first update. Past the end every schedule keeps its final value. Never imports torch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, is_dataclass
from importlib import import_module
from typing import Any

from overt.checks import each_within, finite, within
from overt.errors import ConfigError, nearest


class _WarmedUp:
    """Linear warm-up to the base value, then whatever `_after_warmup` says.

    The dataclasses below declare the fields, each in the order of its signature.
    """

    base_value: float
    epochs: float
    steps_per_epoch: int
    warmup_epochs: float
    start_warmup_value: float
    warmup_fraction: float
    start_warmup_factor: float | None

    def __post_init__(self) -> None:
        each_within("", self, ("epochs", "warmup_epochs"), 0)
        within("steps_per_epoch", self.steps_per_epoch, 1)
        within("warmup_fraction", self.warmup_fraction, 0, 1)
        if self.warmup_epochs and self.warmup_fraction:
            raise ConfigError("warmup_epochs and warmup_fraction: give one of the two")
        if self.start_warmup_value and self.start_warmup_factor is not None:
            raise ConfigError("start_warmup_value and start_warmup_factor: give one of the two")

    @property
    def total_steps(self) -> int:
        return round(self.epochs * self.steps_per_epoch)

    @property
    def warmup_steps(self) -> int:
        if self.warmup_fraction:
            return int(self.warmup_fraction * self.total_steps)
        return int(self.warmup_epochs * self.steps_per_epoch)

    def __call__(self, step: int) -> float:
        """Return the value for the update of this step."""
        count = self._count(max(step, 0))
        warmup = self.warmup_steps
        if count >= warmup:
            return self._after_warmup(count - warmup, self.total_steps - warmup)
        start = self.start_warmup_value
        if self.start_warmup_factor is not None:
            start = self.start_warmup_factor * self.base_value
        return start + (self.base_value - start) * count / warmup

    def get_epoch_value(self, epoch: float) -> float:
        """Return the value at the first step of an epoch."""
        return self(int(epoch * self.steps_per_epoch))

    def _count(self, step: int) -> int:
        return step

    @abstractmethod
    def _after_warmup(self, count: int, span: int) -> float:
        """The value `count` steps after the warm-up, which leaves `span` steps."""

    def _turning_steps(self) -> Iterable[int]:
        """Where, besides the two ends, the largest value may lie."""
        return (self.warmup_steps - self._count(0),)


@dataclass(frozen=True)
class ConstantScheduler(_WarmedUp):
    """Hold the base value after a linear warm-up.

    Examples:
        >>> rate = overt.ConstantScheduler(0.1, epochs=10, steps_per_epoch=10, warmup_epochs=1)
        >>> rate(5), rate(50)
        (0.05, 0.1)
    """

    base_value: float  # after the warm-up; the engine gives the scaled learning rate
    epochs: float  # length of training, from the engine; need not be whole
    steps_per_epoch: int  # optimizer steps, from the engine
    warmup_epochs: float = 0  # length of the warm-up
    start_warmup_value: float = 0.0  # at step 0, where there is a warm-up
    _: KW_ONLY
    warmup_fraction: float = 0.0  # instead of warmup_epochs: as a share of all steps
    start_warmup_factor: float | None = None  # instead of start_warmup_value: times base_value

    def _after_warmup(self, count: int, span: int) -> float:
        return self.base_value


@dataclass(frozen=True)
class ExponentialScheduler(ConstantScheduler):
    """Multiply the base value by gamma for every full epoch since the warm-up.

    Examples:
        >>> rate = overt.ExponentialScheduler(1.0, epochs=10, steps_per_epoch=10, gamma=0.5)
        >>> rate(0), rate(10), rate(25)
        (1.0, 0.5, 0.25)
    """

    _: KW_ONLY
    gamma: float  # factor per epoch; 1 keeps the base value

    def _after_warmup(self, count: int, span: int) -> float:
        count = min(count, max(span - 1, 0))  # past the end the last epoch's value stays
        return self.base_value * self.gamma ** (count // self.steps_per_epoch)


@dataclass(frozen=True)
class _Annealed(_WarmedUp):
    """From the base value at the warm-up's end to the final value after the last step."""

    base_value: float  # after the warm-up; the engine gives the scaled learning rate
    final_value: float  # after the last step; may lie above the base value
    epochs: float  # length of training, from the engine; need not be whole
    steps_per_epoch: int  # optimizer steps, from the engine
    warmup_epochs: float = 0  # length of the warm-up
    start_warmup_value: float = 0.0  # at step 0, where there is a warm-up
    _: KW_ONLY
    warmup_fraction: float = 0.0  # instead of warmup_epochs: as a share of all steps
    start_warmup_factor: float | None = None  # instead of start_warmup_value: times base_value
    stretch: float = 1.0  # above 1, the schedule is longer than training (I-JEPA: ipe_scale)
    first_step: int = 0  # its own count at step 0; I-JEPA counts rate and weight decay from 1

    def __post_init__(self) -> None:
        super().__post_init__()
        each_within("", self, ("stretch", "first_step"), 0)

    @property
    def total_steps(self) -> int:
        return int(self.stretch * round(self.epochs * self.steps_per_epoch))

    def _count(self, step: int) -> int:
        return step + self.first_step

    def _after_warmup(self, count: int, span: int) -> float:
        if span <= 0:  # all warm-up: nothing is left to anneal, the base value stays
            return self.base_value
        return self.final_value if count >= span else self._anneal(count / span)

    @abstractmethod
    def _anneal(self, progress: float) -> float:
        """The value after this share, from 0 to 1, of the steps that the warm-up leaves."""


@dataclass(frozen=True)
class CosineScheduler(_Annealed):
    """Warm up linearly, then follow half a cosine from the base value to the final value.

    Examples:
        >>> rate = overt.CosineScheduler(1e-3, 1e-5, epochs=10, steps_per_epoch=10, warmup_epochs=1)
        >>> [round(rate(step), 6) for step in (0, 5, 10, 99)]
        [0.0, 0.0005, 0.001, 1e-05]
    """

    def _anneal(self, progress: float) -> float:
        return _cosine(self.base_value, self.final_value, progress)


@dataclass(frozen=True)
class LinearScheduler(_Annealed):
    """Warm up linearly, then decay linearly from the base value to the final value.

    Examples:
        >>> value = overt.LinearScheduler(1.0, 0.0, epochs=10, steps_per_epoch=1)
        >>> value(0), value(5)
        (1.0, 0.5)
    """

    def _anneal(self, progress: float) -> float:
        return self.base_value - (self.base_value - self.final_value) * progress


@dataclass(frozen=True)
class EMAScheduler(LinearScheduler):
    """Momentum of an EMA: the base value during the warm-up, then linear to the final value.

    Examples:
        >>> momentum = overt.EMAScheduler(0.996, 1.0, epochs=10, steps_per_epoch=1)
        >>> momentum(0), momentum(5)
        (0.996, 0.998)
    """

    start_warmup_value: float = field(default=0.0, init=False, repr=False)
    start_warmup_factor: float | None = field(default=1.0, init=False, repr=False)

    def step(self, step: int) -> float:
        """Return the value for the update of this step, like a call."""
        return self(step)

    def _after_warmup(self, count: int, span: int) -> float:
        # I-JEPA divides by its steps times ipe_scale, which need not be a whole number.
        total_steps = round(self.epochs * self.steps_per_epoch)
        exact = self.stretch * total_steps - self.warmup_steps
        if exact <= 0:
            return self.base_value
        return self.final_value if count >= exact else self._anneal(count / exact)


@dataclass(frozen=True)
class OneCycleScheduler:
    """Follow torch's OneCycleLR with cosine annealing, without a momentum cycle.

    Examples:
        >>> rate = overt.OneCycleScheduler(1e-3, epochs=10, steps_per_epoch=10)
        >>> rate(0) < rate(30) > rate(99)
        True
    """

    base_value: float  # the largest value; the engine gives the scaled learning rate
    epochs: float  # length of training, from the engine; need not be whole
    steps_per_epoch: int  # optimizer steps, from the engine
    _: KW_ONLY
    warmup_fraction: float = 0.3  # share of all steps in which the value rises (pct_start)
    initial_divisor: float = 25.0  # base_value over the value at step 0 (div_factor)
    final_divisor: float = 1e4  # value at step 0 over the last value (final_div_factor)
    extra_steps: int = 0  # by which the cycle is longer than training

    def __post_init__(self) -> None:
        each_within("", self, ("epochs", "extra_steps"), 0)
        each_within("", self, ("steps_per_epoch", "initial_divisor", "final_divisor"), 1)
        within("warmup_fraction", self.warmup_fraction, 0, 1)

    @property
    def total_steps(self) -> int:
        return round(self.epochs * self.steps_per_epoch) + self.extra_steps

    @property
    def _peak(self) -> float:
        # As in torch the peak may fall between two steps, or before the first.
        return self.warmup_fraction * self.total_steps - 1.0

    def __call__(self, step: int) -> float:
        """Return the value for the update of this step."""
        count, peak, end = max(step, 0), self._peak, self.total_steps - 1.0
        initial = self.base_value / self.initial_divisor
        if count < peak:
            return _cosine(initial, self.base_value, count / peak)
        progress = (count - peak) / (end - peak) if end > peak else float(count > peak)
        return _cosine(self.base_value, initial / self.final_divisor, min(progress, 1.0))

    def get_epoch_value(self, epoch: float) -> float:
        """Return the value at the first step of an epoch."""
        return self(int(epoch * self.steps_per_epoch))

    def _turning_steps(self) -> Iterable[int]:
        return (math.floor(self._peak), math.ceil(self._peak))


Scheduler = ConstantScheduler | CosineScheduler | LinearScheduler | OneCycleScheduler


@dataclass(frozen=True)
class HierarchicalScheduler:
    """Hold one schedule per level; a call returns the values of all levels.

    Examples:
        >>> levels = [overt.ConstantScheduler(rate, 10, 1) for rate in (0.1, 0.2)]
        >>> overt.HierarchicalScheduler(levels)(0)
        [0.1, 0.2]
    """

    schedulers: Sequence[Scheduler]

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedulers", tuple(self.schedulers))

    @property
    def num_levels(self) -> int:
        return len(self.schedulers)

    def __call__(self, step: int) -> list[float]:
        return [scheduler(step) for scheduler in self.schedulers]

    def get_level_value(self, step: int, level: int) -> float:
        """Return the value of one level."""
        return self.schedulers[level](step)


def create_lr_scheduler(
    optimizer_type: str,
    base_lr: float,
    min_lr: float,
    epochs: float,
    steps_per_epoch: int,
    warmup_epochs: float = 0,
    schedule_type: str = "cosine",
) -> CosineScheduler | LinearScheduler:
    """Return a learning-rate schedule that warms up from 0: `cosine` or `linear`.

    `optimizer_type` is for documentation only; the values do not depend on it.

    Examples:
        >>> rate = overt.create_lr_scheduler("adamw", 1e-3, 1e-5, epochs=10, steps_per_epoch=10)
        >>> rate(0)
        0.001
    """
    if schedule_type == "cosine":
        return CosineScheduler(base_lr, min_lr, epochs, steps_per_epoch, warmup_epochs)
    if schedule_type == "linear":
        return LinearScheduler(base_lr, min_lr, epochs, steps_per_epoch, warmup_epochs)
    raise ValueError(f"schedule_type={schedule_type!r}; allowed: cosine and linear")


def create_ema_scheduler(
    base_momentum: float,
    final_momentum: float,
    epochs: float,
    steps_per_epoch: int,
    warmup_epochs: float = 0,
) -> EMAScheduler:
    """Return a momentum schedule that rises linearly from its base to its final value.

    Examples:
        >>> momentum = overt.create_ema_scheduler(0.99, 1.0, epochs=10, steps_per_epoch=10)
        >>> momentum(0)
        0.99
    """
    return EMAScheduler(base_momentum, final_momentum, epochs, steps_per_epoch, warmup_epochs)


def describe(scheduler: Scheduler | HierarchicalScheduler, total_steps: int) -> str:
    """First, largest and last value of a training of `total_steps`, in one line."""
    if isinstance(scheduler, HierarchicalScheduler):
        levels = (describe(level, total_steps) for level in scheduler.schedulers)
        return "; ".join(f"level {index}: {text}" for index, text in enumerate(levels))
    last = max(total_steps - 1, 0)
    # A schedule of another package does not say where it turns.
    turning = getattr(scheduler, "_turning_steps", lambda: range(0, last, max(last // 100, 1)))
    inner = {min(max(step, 0), last) for step in turning()}
    peak = max(sorted({0, last, *inner}), key=scheduler)
    return (
        f"{scheduler(0):.6g} at step 0, {scheduler(peak):.6g} at step {peak} (largest), "
        f"{scheduler(last):.6g} at step {last} (last)"
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


def refuse_overflow(schedule: Callable[[int], float | list[float]], total_steps: int) -> None:
    """Refuse a schedule whose values are not finite somewhere; a hundred steps are looked at."""
    last = max(total_steps - 1, 0)
    for step in sorted({last * part // 100 for part in range(101)}):
        try:
            value = schedule(step)
        except OverflowError:
            value = math.inf
        if not all(map(math.isfinite, value if isinstance(value, list) else [value])):
            raise ConfigError(
                f"schedule: its value at step {step} of {total_steps} ({value}) is not finite; "
                "choose a smaller factor, or a schedule that falls"
            )


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
                f"{where}.{name} follows from optimizer.lr and the length of training; leave it out"
            )
        if name not in allowed:
            raise ConfigError(f"{where}.{name} is not an option here{_allowed(name, allowed)}")


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


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * progress))
