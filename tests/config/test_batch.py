"""overt/config/batch.py: how the global batch is split, and the learning rate that follows."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_runs import toy_config

from overt.config.batch import (
    BatchPlan,
    advice,
    check_stackable,
    plan_batches,
    scaled_learning_rate,
)
from overt.config.schema import OptimizerSection, TrainingSection
from overt.errors import ConfigError

BASE: Any = toy_config("unused").training  # type: ignore[arg-type]


def section(
    batch_size: int | None, global_batch_size: int | None, accumulation_steps: int | None
) -> TrainingSection:
    values = vars(BASE) | {
        "batch_size": batch_size,
        "global_batch_size": global_batch_size,
        "accumulation_steps": accumulation_steps,
    }
    return TrainingSection(**values)


def optimizer(rule: str, lr: float = 2e-4, base: int | None = 8) -> OptimizerSection:
    values: dict[str, Any] = vars(toy_config("unused").optimizer)  # type: ignore[arg-type]
    return OptimizerSection(**values | {"lr": lr, "lr_scaling": rule, "lr_base_batch": base})


# --- the three sizes, each given or left open, on two processes -----------------------------------


@pytest.mark.parametrize(
    ("given_sizes", "batch_size", "accumulation"),
    [
        ((3, None, None), 3, 1),
        ((3, None, 5), 3, 5),
        ((None, 24, None), 12, 1),
        ((None, 24, 3), 4, 3),
        ((3, 24, None), 3, 4),
        ((3, 24, 4), 3, 4),
    ],
)
def test_what_is_left_open_follows(
    given_sizes: tuple[int | None, ...], batch_size: int, accumulation: int
) -> None:
    plan = plan_batches(section(*given_sizes), world_size=2)
    assert plan == BatchPlan(batch_size, accumulation, 2)
    assert plan.global_batch_size == batch_size * accumulation * 2


def test_samples_that_cannot_be_stacked_come_one_by_one() -> None:
    class Ragged:
        stackable = "data.size=null gives every sample its own shape; set a number"

    class Stacked:
        stackable = True

    ragged: Any = Ragged()
    stacked: Any = Stacked()
    check_stackable(ragged, BatchPlan(1, 8, 2))
    check_stackable(stacked, BatchPlan(4, 2, 2))
    with pytest.raises(ConfigError) as error:
        check_stackable(ragged, BatchPlan(4, 2, 2))
    assert "4 samples in a micro-batch, but data.size=null gives" in str(error.value)
    assert "set training.batch_size=1, which reaches the global batch of 16" in str(error.value)


@pytest.mark.parametrize("accumulation", [None, 2])
def test_neither_size_is_refused(accumulation: int | None) -> None:
    with pytest.raises(ConfigError, match="give at least one"):
        section(None, None, accumulation)


@pytest.mark.parametrize(
    ("given_sizes", "world_size", "expected"),
    [
        ((None, 20, None), 16, "use 16 or 32"),
        ((None, 5, None), 16, "use 16, "),
        ((None, 20, 2), 8, "accumulation_steps 2 = 16; use 16 or 32"),
        ((4, 20, None), 4, "batch_size 4 = 16; use 16 or 32, or change training.batch_size"),
        ((2, 16, 3), 4, "4 process(es) x batch_size 2 x accumulation_steps 3 = 24"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_nearest_sizes_that_do(
    given_sizes: tuple[int | None, ...], world_size: int, expected: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_batches(section(*given_sizes), world_size)
    assert expected in str(refused.value)


SIZES = st.none() | st.integers(1, 40)


@given(SIZES, SIZES, SIZES, st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_a_plan_is_what_was_asked_for_or_is_refused(
    batch_size: int | None, total: int | None, accumulation: int | None, world_size: int
) -> None:
    if batch_size is None and total is None:
        return
    try:
        plan = plan_batches(section(batch_size, total, accumulation), world_size)
    except ConfigError:
        assert total is not None
        assert total % (world_size * (batch_size or 1) * (accumulation or 1)) or (
            batch_size is not None and accumulation is not None
        )
        return
    assert plan.world_size == world_size
    assert batch_size in (None, plan.batch_size)
    assert accumulation in (None, plan.accumulation_steps)
    assert total in (None, plan.global_batch_size)


def test_steps_of_an_epoch() -> None:
    plan = BatchPlan(2, 2, 2)
    assert plan.steps_per_epoch(17, drop_last=False) == 3
    assert plan.steps_per_epoch(17, drop_last=True) == 2
    assert plan.steps_per_epoch(3, drop_last=False) == 1
    with pytest.raises(
        ConfigError, match=r"3 samples, fewer than one global batch of 8.*drop_last"
    ):
        plan.steps_per_epoch(3, drop_last=True)


# --- learning rate and advice ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "linear", "sqrt"),
    [  # base 2e-4 at 8, as in the guide
        (8, 2e-4, 2e-4),
        (16, 4e-4, 2.83e-4),
        (32, 8e-4, 4e-4),
        (64, 1.6e-3, 5.66e-4),
        (128, 3.2e-3, 8e-4),
    ],
)
def test_learning_rate_rules(batch: int, linear: float, sqrt: float) -> None:
    assert scaled_learning_rate(optimizer("none"), batch) == 2e-4
    assert scaled_learning_rate(optimizer("linear"), batch) == pytest.approx(linear, rel=1e-9)
    assert scaled_learning_rate(optimizer("sqrt"), batch) == pytest.approx(sqrt, rel=1e-3)


@pytest.mark.parametrize(
    ("total", "world_size", "expected"),
    [
        (8, 8, "1 sample(s) per process and micro-batch idles most of the device"),
        (32, 8, "4 sample(s) per process and micro-batch may not fill the device"),
        (32, 8, "training.global_batch_size=64 gives 8"),
        (64, 8, None),
        (2, 1, None),  # one process: nothing was split
    ],
)
def test_advice_for_a_small_share(total: int, world_size: int, expected: str | None) -> None:
    training = section(None, total, None)
    text = advice(training, optimizer("none"), plan_batches(training, world_size))
    assert text is None if expected is None else expected in str(text)


def test_advice_names_the_rule_that_is_set() -> None:
    training = section(None, 8, None)
    plan = plan_batches(training, 8)
    assert "optimizer.lr_scaling=linear or sqrt" in str(advice(training, optimizer("none"), plan))
    assert "optimizer.lr_scaling=sqrt scales" in str(advice(training, optimizer("sqrt"), plan))


def test_advised_size_is_one_that_divides() -> None:
    training = section(None, 24, 3)
    text = str(advice(training, optimizer("none"), plan_batches(training, 4)))
    advised = int(text.partition("global_batch_size=")[2].split()[0])
    assert plan_batches(section(None, advised, 3), 4).batch_size == 8
