"""overt/tools/plan/engine_step.py: the engine's step on fake tensors holds what a real one does."""

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from small_recipes import BLADE_VIT, SMALL_BLADE
from torch import Tensor, nn
from toy_runs import losses_by_step, toy_config, train_toy

from overt.config import build_recipe, load
from overt.distributed import World
from overt.nested import map_tensors
from overt.recipe import Recipe, StepOutput
from overt.tools.plan.engine_step import EngineStep, StepMemory, make_fake, without_first_weights
from overt.tools.plan.live_memory import rounded
from overt.tools.plan.predict import Fitted


def test_parts_are_those_of_the_model(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "training.ema_momentum=0.9", "optimizer=adamw")
    recipe = build_recipe(config)
    step = EngineStep(config, recipe, checkpointing=False)
    memory = step.run(recipe.example_batch(8), 8)
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


def test_frozen_weights_that_no_checkpoint_holds_do_not_count_as_saved(tmp_path: Path) -> None:
    for saved in (False, True):
        words = (*BLADE_VIT, f"model.depth.save_frozen={saved}")
        config = SMALL_BLADE["depthnet"].config(tmp_path, *words)
        recipe = build_recipe(config)
        numbers = EngineStep(config, recipe, checkpointing=False).numbers
        weights = recipe.build_model().state_dict().values()
        assert numbers.saved == sum(value.nbytes for value in weights)
        assert (numbers.saved > 4 * (numbers.parameters + numbers.frozen)) == saved


def test_torch_does_not_warn_of_tensors_without_memory(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "training.ema_momentum=0.9")
    recipe = build_recipe(config)
    torch.set_warn_always(True)  # or only the first plan of a process would tell
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            EngineStep(config, recipe, checkpointing=False).run(recipe.example_batch(8), 8)
    finally:
        torch.set_warn_always(False)
    assert not [item for item in caught if "FakeTensor" in str(item.message)]


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
    step = EngineStep(config, Deep(), checkpointing)
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


def measure(folder: Path, strategy: str, devices: int, *words: str) -> StepMemory:
    config = toy_config(folder, *words)
    recipe = build_recipe(config)
    step = EngineStep(config, recipe, False, strategy, devices)
    return step.run(recipe.example_batch(4), 4)


def test_a_plan_leaves_no_trace_in_a_training_of_the_same_process(tmp_path: Path) -> None:
    train_toy(tmp_path / "before", "training.num_steps=4")
    generators, precision = torch.get_rng_state(), torch.get_float32_matmul_precision()
    for strategy, devices in (("single", 1), ("ddp", 2), ("fsdp", 4)):
        measure(tmp_path, strategy, devices, "training.precision=bf16")
    assert torch.equal(torch.get_rng_state(), generators)
    assert torch.get_float32_matmul_precision() == precision
    assert not (tmp_path / "toy").exists()
    train_toy(tmp_path / "after", "training.num_steps=4")
    before, after = (losses_by_step(tmp_path / name / "toy") for name in ("before", "after"))
    assert before == after


def test_ddp_holds_all_gradients_in_its_buckets(tmp_path: Path) -> None:
    alone, ddp = measure(tmp_path, "single", 1), measure(tmp_path, "ddp", 8)
    formula = sum((alone.parameters, alone.frozen, alone.optimizer, alone.gradients))
    # Buckets are one storage where gradients are several, each rounded up.
    rounding = 512 * 8
    assert ddp.peak == pytest.approx(formula + alone.transient, abs=rounding)


def test_fsdp_holds_a_shard_of_weights_and_optimizer(tmp_path: Path) -> None:
    few, many = (measure(tmp_path, "fsdp", n, "model.width=4096") for n in (2, 8))
    # Not a quarter: a matrix of four rows has no eighth.
    assert many.parameters < 0.5 * few.parameters
    assert many.optimizer < 0.5 * few.optimizer
    assert many.peak < few.peak
    assert many.flops == few.flops


def test_it_does_not_matter_when_garbage_is_collected(tmp_path: Path) -> None:
    before, peaks = gc.get_threshold(), []
    try:
        for threshold in (0, 200):  # never, often
            gc.set_threshold(threshold, 1, 1)
            peaks.append(measure(tmp_path / str(threshold), "fsdp", 2).peak)
    finally:
        gc.set_threshold(*before)
    assert peaks[0] == peaks[1]


def test_a_custom_step_is_planned(tmp_path: Path) -> None:
    package = str(Path(__file__).parents[3] / "examples" / "own_recipe")
    config = load(["recipe=own_recipe_sharpness", f"output_dir={tmp_path}"], packages=[package])
    recipe = build_recipe(config)
    usual = load(["recipe=own_recipe", f"output_dir={tmp_path}"], packages=[package])
    twice = EngineStep(config, recipe, False).run(recipe.example_batch(4), 4)
    once = EngineStep(usual, build_recipe(usual), False).run(recipe.example_batch(4), 4)
    assert twice.flops == 2 * once.flops  # it walks uphill first


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
    loss, steps = recipe.loss, []

    def recorded(model: Any, batch: Any, counts: Any, step: int) -> StepOutput:
        steps.append(step)
        return loss(model, batch, counts, step)

    recipe.loss = recorded  # type: ignore[method-assign]
    EngineStep(config, recipe, False).run(recipe.example_batch(4), 4)
    recipe.largest_step = lambda: 7  # type: ignore[method-assign]
    EngineStep(config, recipe, False).run(recipe.example_batch(4), 4)
    assert steps == [1, 7]
