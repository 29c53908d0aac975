"""overt/engine/progress.py: what is logged after some steps, and what a log line resets."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from toy_runs import toy_config

from overt.distributed import World
from overt.engine.interval import ENGINE_NAMES
from overt.engine.loader import StepBatch
from overt.engine.progress import Progress
from overt.health.pace import Meter, StragglerWatch
from overt.recipe import StepOutput
from overt.run.console import Console

ALONE = World(0, 1, 0, torch.device("cpu"))


def make(folder: Path, *overrides: str, histograms: Any = None) -> Progress:
    config = toy_config(folder, "training.loss_spike_window=8", *overrides)
    console = Console(enabled=False)
    run: Any = SimpleNamespace(silent=False, log_histograms=histograms, console=console)
    return Progress(config, ALONE, 12, run)


def add(progress: Progress, *losses: float, applied: float = 1.0) -> None:
    for loss in losses:
        output = StepOutput({"fit": torch.tensor(loss)}, {"size": torch.tensor(2.0)})
        batch = StepBatch([], samples=4, wait_seconds=0.5)
        progress.add_step(0, batch, [output], torch.tensor(applied), torch.tensor(3.0))


def test_a_line_holds_the_means_since_the_last_one(tmp_path: Path) -> None:
    progress = make(tmp_path)
    add(progress, 1.0, 2.0)
    add(progress, math.nan, applied=0.0)  # a skipped step is in no mean
    line = progress.read(3, 0.6, 0.01, skipped=1)
    numbers = line.numbers
    assert (line.step, line.epoch) == (3, 0.6)
    assert line.shown == {"loss": 1.5, "lr": 0.01}
    assert (numbers["train/loss"], numbers["train/fit"], numbers["train/size"]) == (1.5, 1.5, 2.0)
    assert (numbers["train/grad_norm"], numbers["train/lr"]) == (3.0, 0.01)
    assert (numbers["train/skipped_steps"], numbers["train/epoch"]) == (1, 0.6)
    assert numbers["train/memory_gib"] == line.memory_bytes / 2**30 > 0
    add(progress, 5.0)
    assert progress.read(4, 0.8, 0.01, 1).shown["loss"] == 5.0


def test_every_number_of_the_engine_is_a_name_that_recipes_may_not_use(tmp_path: Path) -> None:
    progress = make(tmp_path)
    clock = iter(range(100))
    progress.meter = Meter(skip_steps=1, clock=lambda: float(next(clock)))
    progress.observer.flops = 10**9
    add(progress, 1.0, 1.0)
    numbers = progress.read(2, 0.0, 0.0, 0).numbers
    names = {name.removeprefix("train/") for name in numbers} - {"loss", "fit", "size"}
    assert {"lr", "seconds_per_step", "tflops_per_second"} <= names
    assert names <= set(ENGINE_NAMES)


def test_the_first_steps_have_no_speed(tmp_path: Path) -> None:
    progress = make(tmp_path)
    clock = iter(range(100))
    progress.meter = Meter(skip_steps=3, clock=lambda: float(next(clock)))
    add(progress, 1.0, 1.0)
    line = progress.read(2, 0.0, 0.0, 0)
    assert math.isnan(line.rates.seconds_per_step)
    assert "train/seconds_per_step" not in line.numbers
    add(progress, 1.0, 1.0, 1.0)
    line = progress.read(5, 0.0, 0.0, 0)
    assert line.numbers["train/seconds_per_step"] == line.rates.seconds_per_step > 0


def test_spikes_carry_the_steps_they_happened_at(tmp_path: Path) -> None:
    progress = make(tmp_path)
    add(progress, 1.0, 1.1, 0.9, 1.0)
    assert progress.read(4, 0.0, 0.0, 0).spikes == []
    add(progress, 1.0, 50.0, 1.0)
    (spike,) = progress.read(7, 0.0, 0.0, 0).spikes
    assert (spike.step, spike.loss) == (5, 50.0)  # steps count from 0
    assert 1.1 < spike.limit < 50


def test_the_numbers_since_the_last_line_survive_a_resume(tmp_path: Path) -> None:
    whole, first, second = make(tmp_path), make(tmp_path), make(tmp_path)
    add(whole, 1.0, 2.0, 6.0)
    add(first, 1.0, 2.0)
    second.load_state_dict(first.state_dict(), ALONE)
    add(second, 6.0)
    one, other = (progress.read(3, 0.0, 0.0, 0) for progress in (whole, second))
    assert one.numbers["train/loss"] == other.numbers["train/loss"] == 3.0
    assert whole.spikes.state_dict() == second.spikes.state_dict() == [1.0, 2.0, 6.0]
    old = {"interval": first.state_dict()["interval"]}  # from before spikes were watched
    second.load_state_dict(old, ALONE)
    assert second.spikes.state_dict() == []


def test_a_slow_rank_is_named_with_its_host(tmp_path: Path) -> None:
    progress = make(tmp_path)
    progress.hosts = ["first", "second"]
    progress.stragglers = StragglerWatch()
    timings = [[0.1, 0.1], [0.1, 0.9]]
    assert progress._slow_rank(10, timings, 1.0) is None  # once is chance
    slow = progress._slow_rank(20, timings, 1.0)
    assert slow is not None
    assert (slow.step, slow.host, slow.rank, slow.part) == (20, "second", 1, "in the forward pass")
    assert progress._slow_rank(30, [[0.1, 0.9]], 1.0) is None  # alone nobody waits
    assert progress._slow_rank(40, timings, math.nan) is None  # the first steps do not count


def test_histograms_are_taken_when_due_and_do_not_count_as_training(tmp_path: Path) -> None:
    steps: list[int] = []
    progress = make(
        tmp_path,
        "logging.histograms_every_steps=2",
        histograms=lambda model, step: steps.append(step),
    )
    paused: list[int] = []
    inner = progress.meter.pause

    def pause() -> Any:
        paused.append(len(steps))
        return inner()

    progress.meter.pause = pause  # type: ignore[method-assign]
    for step in range(1, 6):
        progress.see_gradients(nn.Linear(1, 1), step)
    assert steps == [2, 4]
    assert len(paused) == 2


def test_flops_are_counted_once_and_only_where_asked_for(tmp_path: Path) -> None:
    class Counts:
        calls = 0

        def flops(self, verdict: object) -> int:
            self.calls += 1
            return 1000

    replay: Any = Counts()
    verdict: Any = object()
    make(tmp_path).count_flops(replay, verdict)
    assert replay.calls == 0
    progress = make(tmp_path, "logging.model_flops=true")
    progress.count_flops(replay, None)  # no step to look at yet
    assert replay.calls == 0
    progress.count_flops(replay, verdict)
    progress.count_flops(replay, verdict)
    assert replay.calls == 1
    assert progress.observer.flops == 1000


@pytest.mark.parametrize("name", ["interval", "spikes"])
def test_the_state_is_plain_values(name: str, tmp_path: Path) -> None:
    import json

    progress = make(tmp_path)
    add(progress, 1.0, 2.0)
    progress.read(2, 0.0, 0.0, 0)
    add(progress, 3.0)
    state = progress.state_dict()
    assert json.loads(json.dumps(state))[name] == state[name]
