"""Schedules as pure functions of the optimizer step: learning rate, weight decay, EMA momentum.

Step 0 is the first update. Past the end every schedule keeps its final value. Never imports torch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from overt.checks import each_within, within
from overt.errors import ConfigError


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
        """Return the value `count` steps after the warm-up, which leaves `span` steps."""

    def _turning_steps(self) -> Iterable[int]:
        """Yield the steps, besides both ends, at which the value may be largest."""
        return (self.warmup_steps - self._count(0),)


@dataclass(frozen=True)
class ConstantScheduler(_WarmedUp):
    """Hold the base value after a linear warm-up.

    Examples:
        >>> rate = overt.ConstantScheduler(0.1, epochs=10, steps_per_epoch=10, warmup_epochs=1)
        >>> rate(5), rate(50)
        (0.05, 0.1)
    """

    base_value: float  # value after the warm-up; the engine gives the scaled learning rate
    epochs: float  # length of training, from the engine; need not be whole
    steps_per_epoch: int  # optimizer steps, from the engine
    warmup_epochs: float = 0  # length of the warm-up
    start_warmup_value: float = 0.0  # value at step 0 of a warm-up
    _: KW_ONLY
    # length of the warm-up as a fraction of all steps, instead of warmup_epochs
    warmup_fraction: float = 0.0
    # value at step 0 of a warm-up over base_value, instead of start_warmup_value
    start_warmup_factor: float | None = None

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

    base_value: float  # value after the warm-up; the engine gives the scaled learning rate
    final_value: float  # value after the last step; may be above base_value
    epochs: float  # length of training, from the engine; need not be whole
    steps_per_epoch: int  # optimizer steps, from the engine
    warmup_epochs: float = 0  # length of the warm-up
    start_warmup_value: float = 0.0  # value at step 0 of a warm-up
    _: KW_ONLY
    # length of the warm-up as a fraction of all steps, instead of warmup_epochs
    warmup_fraction: float = 0.0
    # value at step 0 of a warm-up over base_value, instead of start_warmup_value
    start_warmup_factor: float | None = None
    stretch: float = 1.0  # above 1, the schedule is longer than training (I-JEPA: ipe_scale)
    first_step: int = 0  # the schedule's count at step 0; I-JEPA counts both rates from 1

    def __post_init__(self) -> None:
        super().__post_init__()
        each_within("", self, ("stretch", "first_step"), 0)

    @property
    def total_steps(self) -> int:
        if float(self.epochs).is_integer():
            # In I-JEPA's order, from left to right: 1.2 * 3 * 15 is below 54.
            return int(self.stretch * self.epochs * self.steps_per_epoch)
        return int(self.stretch * round(self.epochs * self.steps_per_epoch))

    def _count(self, step: int) -> int:
        return step + self.first_step

    def _after_warmup(self, count: int, span: int) -> float:
        if span <= 0:  # all warm-up: nothing is left to anneal, the base value stays
            return self.base_value
        return self.final_value if count >= span else self._anneal(count / span)

    @abstractmethod
    def _anneal(self, progress: float) -> float:
        """Return the value after this fraction, from 0 to 1, of the steps after the warm-up."""


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
    warmup_fraction: float = 0.3  # fraction of all steps in which the value rises (pct_start)
    initial_divisor: float = 25.0  # base_value over the value at step 0 (div_factor)
    final_divisor: float = 1e4  # value at step 0 over the last value (final_div_factor)
    extra_steps: int = 0  # steps by which the cycle is longer than training

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


def refuse_overflow(schedule: Callable[[int], float | list[float]], total_steps: int) -> None:
    """Refuse a schedule with non-finite values; a hundred steps are checked."""
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


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * progress))
