"""overt/health/pace.py: the process that holds the others up is found, and only that."""

import contextlib
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_runs import toy_config

from overt.health.pace import Meter, Pace, Rates, Straggler, StragglerWatch, find_straggler

RUNS = Callable[..., list[Any]]


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def step(meter: Meter, clock: Clock, seconds: float, wait: float = 0.0) -> None:
    clock.now += seconds
    meter.step(samples=8, wait_seconds=wait)


def test_rates_are_means_since_the_last_reading() -> None:
    clock = Clock()
    meter = Meter(skip_steps=0, clock=clock)
    for _ in range(4):
        step(meter, clock, seconds=0.5, wait=0.1)
    assert meter.read() == pytest.approx(Rates(0.5, 16.0, 0.2))
    step(meter, clock, seconds=2.0)
    assert meter.read() == pytest.approx(Rates(2.0, 4.0, 0.0))


def test_first_steps_evaluation_and_saving_do_not_count() -> None:
    clock = Clock()
    meter = Meter(skip_steps=2, clock=clock)
    step(meter, clock, seconds=60.0, wait=30.0)  # compiles
    assert all(math.isnan(rate) for rate in meter.read())
    step(meter, clock, seconds=5.0)
    for _ in range(3):
        step(meter, clock, seconds=0.25)
        with meter.pause():
            clock.now += 1000.0
    assert meter.read() == pytest.approx(Rates(0.25, 32.0, 0.0))


def test_a_pause_that_fails_is_still_left_out() -> None:
    clock = Clock()
    meter = Meter(skip_steps=0, clock=clock)
    step(meter, clock, seconds=1.0)
    with contextlib.suppress(KeyError), meter.pause():
        clock.now += 50.0
        raise KeyError
    assert meter.read().seconds_per_step == pytest.approx(1.0)


@pytest.mark.parametrize("slow", range(4))
@pytest.mark.parametrize(("part", "name"), [(0, "waiting for data"), (1, "in the forward pass")])
def test_the_slow_process_is_found(slow: int, part: int, name: str) -> None:
    paces = [[0.01, 0.2] for _ in range(4)]
    usual = paces[slow][part]
    paces[slow][part] += 0.3
    assert find_straggler(paces, 1.0) == Straggler(slow, name, usual + 0.3, usual)


@pytest.mark.parametrize(
    "paces",
    [
        [[0.3, 0.4], [0.3, 0.4]],  # all wait alike: no straggler, a slow loader
        [[0.0, 0.4], [0.09, 0.4]],  # less than a tenth of a step
        [[0.3, 0.4], [0.42, 0.4]],  # not much more than the others
    ],
)
def test_small_differences_are_not_worth_a_word(paces: list[list[float]]) -> None:
    assert find_straggler(paces, 1.0) is None


def test_a_straggler_is_named_at_the_second_reading_and_not_again() -> None:
    level, slow = [[0.1, 0.1], [0.1, 0.1]], [[0.1, 0.1], [0.5, 0.1]]
    watch = StragglerWatch()
    said = [watch.notice(paces, 1.0) for paces in (slow, level, slow, slow, slow, level, slow)]
    assert [one is not None for one in said] == [False, False, False, True, False, False, False]


def test_of_two_processes_the_slower_is_named() -> None:
    found = find_straggler([[0.5, 0.1], [0.0, 0.1]], 1.0)
    assert found is not None
    assert found.rank == 0


def test_a_reading_is_per_step_and_begins_anew() -> None:
    pace = Pace(torch.device("cpu"))
    for wait in (1.0, 2.0):
        pace.add_step(wait)
        pace.begin_forward()
        pace.end_forward()
    waited, forward = pace.read()
    assert waited == 1.5
    assert forward >= 0.0
    assert pace.read() == [0.0, 0.0]


@pytest.mark.gpu
def test_forward_passes_are_timed_on_the_device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pace = Pace(torch.device("cuda"))
    factor = torch.randn(2048, 2048, device="cuda")
    for _ in range(2 * Pace.EVERY):
        pace.begin_forward()
        for _ in range(10):
            factor = torch.tanh(factor @ factor)
        pace.end_forward()
    assert pace.read()[1] > 0.0


def train_slowly(folder: Path) -> None:
    from overt.config import build_recipe
    from overt.distributed import init_distributed
    from overt.engine.trainer import Trainer

    world = init_distributed("cpu")
    config = toy_config(folder, "logging.every_steps=4")
    trainer = Trainer(config, build_recipe(config), world)
    inner = trainer.recipe.loss

    def loss(*arguments: Any) -> Any:
        threading.Event().wait(0.25 * world.rank)  # longer than a busy machine holds up rank 0
        return inner(*arguments)

    trainer.recipe.loss = loss
    trainer.train()


def test_the_run_names_its_straggler_once(run_processes: RUNS, tmp_path: Path) -> None:
    run_processes(train_slowly, 2, tmp_path)
    rows = map(json.loads, (tmp_path / "toy/events.jsonl").read_text().splitlines())
    found = [row for row in rows if row["kind"] == "straggler"]
    assert [(row["rank"], row["part"]) for row in found] == [(1, "in the forward pass")]
