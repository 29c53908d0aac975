"""Schedules: what holds for all of them, and equality with torch's own."""

import itertools
import math
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from overt.schedule import (
    ConstantScheduler,
    CosineScheduler,
    EMAScheduler,
    ExponentialScheduler,
    HierarchicalScheduler,
    LinearScheduler,
    OneCycleScheduler,
    Scheduler,
    create_ema_scheduler,
    create_lr_scheduler,
    describe,
)

EXACT = 1e-12
ANNEALED = (CosineScheduler, LinearScheduler)
repeatable = settings(deadline=None, derandomize=True, max_examples=60)

values = st.floats(0.0, 10.0)
epochs = st.integers(1, 30)
steps_per_epoch = st.integers(1, 20)


@st.composite
def schedulers(draw: st.DrawFn) -> Scheduler:
    """Any schedule with any options."""
    length: dict[str, Any] = {"epochs": draw(epochs), "steps_per_epoch": draw(steps_per_epoch)}
    kind = draw(st.sampled_from((*ANNEALED, ConstantScheduler, ExponentialScheduler, "one cycle")))
    base = draw(values)
    if kind == "one cycle":
        return OneCycleScheduler(
            base, **length, warmup_fraction=draw(st.floats(0, 1)), extra_steps=draw(epochs)
        )
    options: dict[str, Any] = draw(
        st.one_of(
            st.fixed_dictionaries({"warmup_epochs": st.floats(0, 40)}),
            st.fixed_dictionaries({"warmup_fraction": st.floats(0, 1)}),
        )
    )
    options |= draw(
        st.one_of(
            st.fixed_dictionaries({"start_warmup_value": values}),
            st.fixed_dictionaries({"start_warmup_factor": st.floats(0, 1)}),
        )
    )
    if kind in ANNEALED:
        options |= {"final_value": draw(values), "first_step": draw(st.integers(0, 2))}
        options |= {"stretch": draw(st.floats(0.5, 1.5))}
    if kind is ExponentialScheduler:
        options |= {"gamma": draw(st.floats(0.5, 1.0))}
    return kind(base_value=base, **length, **options)


# --- what holds for all ---------------------------------------------------------------------------


@repeatable
@given(schedulers())
def test_every_value_is_finite_and_the_end_is_kept(scheduler: Scheduler) -> None:
    steps = range(scheduler.total_steps + 40)
    assert all(math.isfinite(scheduler(step)) for step in steps)
    end = max(scheduler.total_steps, getattr(scheduler, "warmup_steps", 0))
    assert scheduler(end) == scheduler(end + 1) == scheduler(10 * end + 100)
    assert scheduler(-5) == scheduler(0)


@repeatable
@given(schedulers(), st.integers(1, 700))
def test_describe_finds_the_largest_value(scheduler: Scheduler, total_steps: int) -> None:
    text = describe(scheduler, total_steps)
    match = re.fullmatch(
        r"(\S+) at step 0, (\S+) at step (\d+) \(largest\), (\S+) at step (\d+) \(last\)", text
    )
    assert match is not None, text
    assert float(match[1]) == pytest.approx(scheduler(0), rel=1e-5)
    largest = max(scheduler(step) for step in range(total_steps))
    assert float(match[2]) == pytest.approx(largest, rel=1e-5)
    assert scheduler(int(match[3])) == pytest.approx(largest, rel=EXACT)
    assert float(match[4]) == pytest.approx(scheduler(total_steps - 1), rel=1e-5)
    assert int(match[5]) == total_steps - 1


@repeatable
@given(st.sampled_from(ANNEALED), values, values, values, epochs, steps_per_epoch, epochs)
def test_warm_up_meets_the_curve_and_both_are_monotone(
    kind: Callable[..., CosineScheduler],
    base: float,
    final: float,
    start: float,
    length: int,
    steps: int,
    warmup: int,
) -> None:
    scheduler = kind(base, final, length + warmup, steps, warmup, start)
    total, peak = scheduler.total_steps, scheduler.warmup_steps
    assert scheduler(0) == start
    assert scheduler(peak) == pytest.approx(base, abs=EXACT)
    # Continuous: the step into the warm-up's end is as long as every other step of the warm-up.
    assert scheduler(peak) - scheduler(peak - 1) == pytest.approx((base - start) / peak, abs=1e-9)
    assert scheduler(total) == final
    curve = [scheduler(step) for step in range(total + 1)]
    for part in (curve[: peak + 1], curve[peak:]):
        rises = part[-1] >= part[0]
        pairs = itertools.pairwise(part)
        assert all(b >= a - EXACT if rises else b <= a + EXACT for a, b in pairs)


@repeatable
@given(st.floats(0.5, 1), st.floats(0.5, 1), epochs, steps_per_epoch, st.integers(0, 10))
def test_momentum_holds_its_base_then_moves_evenly(
    base: float, final: float, length: int, steps: int, warmup: int
) -> None:
    scheduler = create_ema_scheduler(base, final, length + warmup, steps, warmup)
    assert isinstance(scheduler, EMAScheduler)
    assert all(scheduler(step) == base for step in range(scheduler.warmup_steps + 1))
    half = (scheduler.warmup_steps + scheduler.total_steps) / 2
    middle = (scheduler(math.floor(half)) + scheduler(math.ceil(half))) / 2
    assert middle == pytest.approx((base + final) / 2, abs=EXACT)
    assert scheduler(scheduler.total_steps) == final
    assert scheduler.step(7) == scheduler(7)


def test_momentum_is_divided_by_steps_times_ipe_scale_however_fractional() -> None:
    scheduler = EMAScheduler(0.996, 1.0, epochs=3, steps_per_epoch=7, stretch=1.03)
    for step in (0, 1, 10, 20):
        official = 0.996 + step * (1.0 - 0.996) / (7 * 3 * 1.03)
        assert scheduler(step) == pytest.approx(official, abs=1e-15)


@pytest.mark.parametrize("kind", ANNEALED)
def test_a_schedule_that_is_all_warm_up_stays_at_its_base(kind: Any) -> None:
    scheduler = kind(0.1, 0.0, epochs=2, steps_per_epoch=10, warmup_epochs=3)
    assert [scheduler(step) for step in (0, 15, 30, 31, 500)] == [0.0, 0.05, 0.1, 0.1, 0.1]


def test_a_length_counted_in_steps_is_met_exactly() -> None:
    # 50 000 steps of 687 per epoch: the float number of epochs must come back as whole steps.
    for total in (1, 99, 50_000, 103_050):
        assert CosineScheduler(1.0, 0.0, total / 687, 687).total_steps == total
        assert OneCycleScheduler(1.0, total / 687, 687, extra_steps=100).total_steps == total + 100


def test_stretch_ends_training_before_the_final_value() -> None:
    plain = CosineScheduler(1.0, 0.0, 10, 10)
    stretched = CosineScheduler(1.0, 0.0, 10, 10, stretch=1.25)
    assert stretched(125) == plain(100) == 0.0
    assert stretched(50) == pytest.approx(plain(40), abs=EXACT)


@repeatable
@given(
    stretch=st.sampled_from((1.0, 1.15, 1.2, 1.25, 1.4, 1.7)),
    count=st.integers(1, 400),
    length=st.integers(1, 2000),
)
@example(stretch=1.2, count=3, length=15)
def test_a_stretched_length_is_rounded_as_ijepa_rounds_it(
    stretch: float, count: int, length: int
) -> None:
    """int(ipe_scale * epochs * ipe), from left to right: 1.2 * 3 * 15 is 53.99..."""
    official = int(stretch * count * length)
    for kind in ANNEALED:
        assert kind(1.0, 0.0, count, length, stretch=stretch).total_steps == official


def test_values_by_epoch_are_those_of_its_first_step() -> None:
    for scheduler in (LinearScheduler(1.0, 0.0, 4, 25, 1), OneCycleScheduler(1.0, 4, 25)):
        assert [scheduler.get_epoch_value(e) for e in range(4)] == [
            scheduler(step) for step in (0, 25, 50, 75)
        ]


def test_levels_are_independent() -> None:
    levels = [CosineScheduler(1.0, 0.0, 2, 10), ConstantScheduler(0.5, 2, 10)]
    scheduler = HierarchicalScheduler(levels)
    assert scheduler.num_levels == 2
    assert scheduler(7) == [levels[0](7), 0.5]
    assert scheduler.get_level_value(7, 0) == levels[0](7)
    assert describe(scheduler, 20).startswith("level 0: 1 at step 0")
    with pytest.raises(IndexError):
        scheduler.get_level_value(7, 2)


def test_the_named_constructors() -> None:
    cosine = create_lr_scheduler("adamw", 1e-3, 1e-6, 30, 20, warmup_epochs=4)
    assert cosine == CosineScheduler(1e-3, 1e-6, 30, 20, 4, 0.0)
    linear = create_lr_scheduler("sgd", 1e-3, 1e-6, 30, 20, schedule_type="linear")
    assert linear == LinearScheduler(1e-3, 1e-6, 30, 20)
    with pytest.raises(ValueError, match="allowed: cosine and linear"):
        create_lr_scheduler("adamw", 1e-3, 1e-6, 30, 20, schedule_type="step")


# --- equality with torch --------------------------------------------------------------------------


def torch_values(build: Callable[[Any], Any], base: float, steps: int) -> list[float]:
    """The rates that a torch scheduler, stepped after each update, gives to the updates."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
    scheduler = build(optimizer)
    found = []
    for step in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        if step + 1 < steps:
            optimizer.step()
            scheduler.step()
    return found


@pytest.mark.parametrize(("steps", "share"), [(900, 0.05), (101, 0.3), (33, 0.5), (30, 0.01)])
def test_one_cycle_is_that_of_torch(steps: int, share: float) -> None:
    ours = OneCycleScheduler(5e-4, steps / 7, 7, warmup_fraction=share, extra_steps=100)
    theirs = torch_values(
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 5e-4, steps + 100, pct_start=share, cycle_momentum=False
        ),
        5e-4,
        steps + 100,
    )
    assert [ours(step) for step in range(steps + 100)] == pytest.approx(theirs, abs=EXACT)
    assert ours(10 * steps + 1000) == pytest.approx(2e-9, abs=EXACT)


def test_a_rise_over_the_whole_cycle_ends_at_the_top() -> None:
    scheduler = OneCycleScheduler(1.0, 1, 10, warmup_fraction=1.0)
    assert scheduler(9) == 1.0
    assert scheduler(8) < scheduler(9)


def test_warm_up_by_fraction_is_the_composed_schedule_of_torch() -> None:
    steps, warmup = 1500, 15
    ours = CosineScheduler(
        5e-4, 0.0, steps / 10, 10, warmup_fraction=0.01, start_warmup_factor=1e-5
    )

    def compose(optimizer: Any) -> Any:
        schedule = torch.optim.lr_scheduler
        return schedule.SequentialLR(
            optimizer,
            [
                schedule.LinearLR(optimizer, start_factor=1e-5, total_iters=warmup),
                schedule.CosineAnnealingLR(optimizer, T_max=steps - warmup),
            ],
            milestones=[warmup],
        )

    theirs = torch_values(compose, 5e-4, steps + 1)
    assert [ours(step) for step in range(steps + 1)] == pytest.approx(theirs, abs=EXACT)


def test_exponential_is_that_of_torch_stepped_once_per_epoch() -> None:
    ours = ExponentialScheduler(2e-4, epochs=12, steps_per_epoch=5, gamma=0.9)
    theirs = torch_values(
        lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9), 2e-4, 12
    )
    assert [ours(step) for step in range(60)] == pytest.approx(
        [value for value in theirs for _ in range(5)], abs=EXACT
    )


def test_exponential_counts_its_epochs_from_the_end_of_the_warm_up() -> None:
    scheduler = ExponentialScheduler(
        1.0, 5, 4, warmup_epochs=2, start_warmup_factor=0.01, gamma=0.5
    )
    assert scheduler(0) == 0.01
    assert [scheduler(step) for step in (8, 11, 12, 16, 19, 20)] == [1, 1, 0.5, 0.25, 0.25, 0.25]


def test_schedules_do_not_load_torch() -> None:
    code = "import sys, overt.schedule_section; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
