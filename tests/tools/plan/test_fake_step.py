"""A fake step holds what a real one would: weights, gradients, averages, activations."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy_runs import toy_config

from overt.config import build_recipe
from overt.distributed import World
from overt.nested import map_tensors
from overt.recipe import Recipe, StepOutput
from overt.tools.plan.fake_step import FakeStep, StepMemory, make_fake, without_first_weights
from overt.tools.plan.live_memory import rounded
from overt.tools.plan.predict import Fitted, example_batch


def test_parts_are_those_of_the_model(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "training.ema_momentum=0.9", "optimizer=adamw")
    recipe = build_recipe(config)
    step = FakeStep(config, recipe, checkpointing=False)
    memory = step.run(example_batch(recipe, 8), 8)
    real = recipe.build_model()
    trained = [p for p in real.parameters() if p.requires_grad]
    frozen = [p for p in real.parameters() if not p.requires_grad]

    def held(tensors: list[nn.Parameter]) -> int:
        return sum(rounded(4 * tensor.numel()) for tensor in tensors)

    assert step.numbers.parameters == sum(p.numel() for p in trained)
    assert memory.parameters == memory.gradients == held(trained)
    assert memory.frozen == held(frozen) + held(trained + frozen)  # and the average of all
    # Two moments and a counter for each.
    assert memory.optimizer == 2 * held(trained) + len(trained) * 512
    assert memory.peak >= memory.parameters + memory.frozen + memory.optimizer + memory.batch


class Deep(Recipe):
    """A recipe of four wide blocks."""

    def build_dataset(self) -> Any:
        raise AssertionError("planning reads no data")

    def collate(self, samples: Any) -> Any:
        raise AssertionError("planning reads no data")

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        raise AssertionError("planning does not evaluate")

    def build_model(self) -> nn.Module:
        parts = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]
        return nn.Sequential(*parts)

    def blocks(self, model: nn.Sequential) -> list[nn.Module]:
        return list(model)

    def loss(self, model: nn.Module, batch: Tensor, counts: Any, step: int) -> StepOutput:
        assert batch.is_cuda
        return StepOutput({"square": model(batch).square().sum() / counts["samples"]})


def deep_step(folder: Path, sizes: tuple[int, ...], checkpointing: bool) -> list[StepMemory]:
    config = toy_config(folder, "training.precision=bf16")
    step = FakeStep(config, Deep(), checkpointing)
    return [step.run(torch.zeros(size, 100, 64), size) for size in sizes]


def test_two_sizes_tell_a_third(tmp_path: Path) -> None:
    one, other, third = deep_step(tmp_path, (8, 16, 64), checkpointing=False)
    predicted = Fitted(one, other).at(64)
    assert predicted.flops == third.flops
    assert predicted.transient == pytest.approx(third.transient, rel=0.02)
    assert predicted.parameters == third.parameters
    # Forward and two products backward for each weight but the first, whose input has no gradient.
    matrices, tokens = 8, 64 * 100
    assert third.flops == (3 * matrices - 1) * 2 * tokens * 64 * 256


def test_recompute_trades_memory_for_flops(tmp_path: Path) -> None:
    (kept,) = deep_step(tmp_path, (64,), checkpointing=False)
    (again,) = deep_step(tmp_path, (64,), checkpointing=True)
    assert again.transient < 0.7 * kept.transient
    # The last product of a block need not be computed again.
    assert again.flops == kept.flops + 4 * 2 * 64 * 100 * 64 * 256
    assert again.parameters == kept.parameters


def test_nothing_stays_alive_after_a_step(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    recipe = build_recipe(config)
    step = FakeStep(config, recipe, checkpointing=False)
    before = step.memory.total
    step.run(example_batch(recipe, 4), 4)
    assert step.memory.total == before
    assert step.memory.live["gradients"] == 0


def test_tied_parameters_stay_one_and_first_weights_are_not_drawn() -> None:
    state = torch.get_rng_state()
    with without_first_weights():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert torch.equal(torch.get_rng_state(), state)
    model[1].weight = model[0].weight
    make_fake(model)
    assert model[1].weight is model[0].weight
    assert len(list(model.parameters())) == 3
    assert map_tensors(model[0].bias, lambda tensor: tensor).requires_grad


def test_a_recipe_names_the_step_that_takes_most(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    recipe = build_recipe(config)
    assert FakeStep(config, recipe, checkpointing=False).step == 1
    recipe.largest_step = lambda: 7  # type: ignore[attr-defined]
    assert FakeStep(config, recipe, checkpointing=False).step == 7
