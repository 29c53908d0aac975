"""overt/engine/strategy/automatic.py: what `auto` chooses, why, and how it is given up."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy_runs import losses_by_step, toy_config

from overt.config import build_recipe
from overt.config.schema import TrainingSection
from overt.distributed import World, init_distributed
from overt.engine.state import State
from overt.engine.strategy import automatic
from overt.engine.strategy.automatic import (
    LARGEST_REDUCED,
    Attempt,
    Speed,
    choice_on_cuda,
    choose,
)
from overt.engine.trainer import Trainer
from overt.errors import StoppedAtStart
from overt.recipe import Recipe

CUDA = World(0, 1, 0, torch.device("cuda", 0))
TWO = CUDA._replace(world_size=2)
CPU = CUDA._replace(device=torch.device("cpu"))


class Blocks:
    """What `choose` asks a recipe for."""

    replayable: bool | str = True
    stackable: bool | str = True
    compile_pays: bool | str = True
    blocks = True

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def compile_units(self, model: nn.Module) -> list[nn.Module]:
        return [model] if self.blocks else []


class Huge(nn.Module):
    """One parameter, too large to be reduced after the pass; it takes no memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(LARGEST_REDUCED // 4 + 1, device="meta"))


@pytest.fixture(autouse=True)
def modern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic.dispatch, "HAS_TRITON", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


@cache
def training_with(*overrides: str) -> TrainingSection:
    return toy_config(Path("unused"), *overrides).training


def chosen(
    *overrides: str,
    world: World = CUDA,
    steps: int = 10_000,
    model: nn.Module | None = None,
    **recipe: Any,
) -> Speed:
    fake: Any = Blocks(**recipe)
    return choose(training_with(*overrides), fake, model or nn.Linear(2, 2), world, steps)


@pytest.mark.parametrize("steps", [10, 10_000])
@pytest.mark.parametrize("overrides", [(), ("training.deterministic=true",)])
@pytest.mark.parametrize("recipe", [{}, {"blocks": False}, {"replayable": "it reads a value"}])
@pytest.mark.parametrize("world", [CUDA, TWO])
def test_a_plan_foretells_what_a_run_says(
    steps: int, overrides: tuple[str, ...], recipe: dict[str, Any], world: World
) -> None:
    fake: Any = Blocks(**recipe)
    reduced = LARGEST_REDUCED + 4 if world is TWO else 0
    units, training = len(fake.compile_units(Huge())), training_with(*overrides)
    words = choice_on_cuda(training, fake, units, steps, reduced)
    speed = chosen(*overrides, world=world, steps=steps, model=Huge(), **recipe)
    assert words == speed.reason != ""


def test_both_are_used_on_cuda_and_nothing_changes_on_a_cpu() -> None:
    speed = chosen()
    assert (speed.training.compile, speed.training.cuda_graph) == ("blocks", True)
    assert (speed.tries_blocks, speed.tries_graph) == (True, True)
    assert speed.at_start().compile == "none"  # what may fail waits for the first step
    speed = chosen(world=CPU)
    assert (speed.training.compile, speed.training.cuda_graph) == ("none", False)
    assert (speed.reason, speed.tries_blocks, speed.tries_graph) == ("", False, False)


def test_a_value_is_kept_and_insisted_on() -> None:
    speed = chosen("training.compile=model", "training.cuda_graph=true", steps=1)
    assert (speed.training.compile, speed.training.cuda_graph) == ("model", True)
    assert (speed.reason, speed.tries_blocks, speed.tries_graph) == ("", False, False)


@pytest.mark.parametrize(
    ("options", "compiled", "recorded", "reason"),
    [
        ({"steps": 499}, "none", True, "499 steps are over before"),
        ({"blocks": False}, "none", True, "the recipe names no blocks"),
        ({"compile_pays": "kernels of its own"}, "none", True, "(kernels of its own)"),
        ({"compile_pays": False}, "none", True, "the recipe says that it does not pay"),
        ({"replayable": "size=null; set 8"}, "blocks", False, "(size=null; set 8)"),
        ({"replayable": False}, "blocks", False, "does not say that its loss can be replayed"),
        ({"stackable": "lengths differ"}, "blocks", False, "different shapes: lengths differ"),
        ({"world": TWO}, "blocks", True, "the same work in every step"),
        ({"world": TWO, "model": Huge()}, "blocks", False, "during the backward pass"),
    ],
)
def test_the_recipe_and_the_run_decide(
    options: dict[str, Any], compiled: str, recorded: bool, reason: str
) -> None:
    speed = chosen(**options)
    assert (speed.training.compile, speed.training.cuda_graph) == (compiled, recorded)
    assert reason in speed.reason


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("training.deterministic=true", "training.deterministic=true"),
        ("training.strategy=fsdp", "gathering shards cannot be replayed"),
    ],
)
def test_settings_that_exclude_both(override: str, reason: str) -> None:
    speed = chosen(override, world=TWO)
    assert (speed.training.compile, speed.training.cuda_graph) == ("none", False)
    assert reason in speed.reason


def test_triton_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    assert "older than Triton supports" in chosen().reason
    monkeypatch.setattr(automatic.dispatch, "HAS_TRITON", False)
    assert "Triton is not installed" in chosen().reason


def compile_badly(recipe: Recipe, model: nn.Module, training: TrainingSection) -> None:
    def call(*arguments: Any) -> Any:
        torch.rand(1)  # a pass that fails half-way has drawn numbers
        raise OSError("no C compiler here\nand many more lines")

    for unit in recipe.compile_units(model):
        unit._compiled_call_impl = call  # what `nn.Module.compile` sets


@pytest.mark.parametrize("works", [True, False])
def test_a_failed_compilation_costs_no_step(
    works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout and all: the losses are those of the run that never tried."""
    if not works:
        monkeypatch.setattr(automatic, "compile_model", compile_badly)
    settings = ("training.num_steps=4", "logging.every_steps=1", "model.dropout=0.2")

    def train(folder: Path, tries: bool) -> Trainer:
        config = toy_config(folder, *settings)
        recipe: Recipe = build_recipe(config)
        trainer = Trainer(config, recipe, init_distributed("cpu"))
        if tries:
            speed = trainer.speed.speed
            speed.training = replace(speed.training, compile="blocks", compile_backend="eager")
            speed.tries_blocks, speed.reason = True, "compile=blocks (a test)"
        trainer.train()
        return trainer

    train(tmp_path / "plain", tries=False)
    with torch._dynamo.config.patch(suppress_errors=False):
        trainer = train(tmp_path / "auto", tries=True)
        # In later steps a failure costs nothing either.
        assert torch._dynamo.config.suppress_errors is works
    assert losses_by_step(tmp_path / "auto/toy") == losses_by_step(tmp_path / "plain/toy")
    lines = (tmp_path / "auto/toy/events.jsonl").read_text().splitlines()
    events = {event["kind"]: event for event in map(json.loads, lines)}
    assert events["speed"]["reason"] == "compile=blocks (a test)"
    if works:
        assert "speed_given_up" not in events
        assert trainer.speed.speed.training.compile == "blocks"
    else:
        assert "no C compiler here" in events["speed_given_up"]["problem"]
        assert trainer.speed.speed.training.compile == "none"


def test_a_stop_during_compilation_is_no_reason_to_give_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loss(_: nn.Module) -> Tensor:
        try:
            raise StoppedAtStart("SIGTERM")
        except StoppedAtStart:
            raise RuntimeError("the backend failed") from None  # as torch reports it

    monkeypatch.setattr(automatic, "compile_model", lambda *_: None)
    recipe: Any = Blocks()
    speed, events = Speed(training_with(), tries_blocks=True), []
    with pytest.raises(RuntimeError, match="the backend failed"):
        Attempt(speed, recipe, nn.Linear(2, 2), events.append, State()).begin(loss)
    assert not events
