"""overt/engine/build.py: from a configuration to what computes, the same on every rank."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from toy_recipe.recipe import Toy
from toy_runs import same_bits, toy_config, train_toy

from overt.checkpoint import storage
from overt.config import build_recipe
from overt.distributed import World, init_distributed
from overt.engine.build import Parts, Wrapping, build, introduction, wrap
from overt.engine.state import State
from overt.errors import CheckpointError, ConfigError, DataError
from overt.health.phases import Phases

RUNS = Callable[..., list[Any]]
ALONE = World(0, 1, 0, torch.device("cpu"))


def parts_of(folder: Path, *overrides: str, **options: Any) -> Parts:
    config = toy_config(folder, *overrides)
    return build(config, build_recipe(config), ALONE, **options)


# --- the parts ------------------------------------------------------------------------------------


def test_the_first_weights_follow_from_the_seed_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    first = parts_of(tmp_path).model.state_dict()
    torch.manual_seed(6)
    assert same_bits(parts_of(tmp_path).model.state_dict(), first)
    assert not same_bits(parts_of(tmp_path, "seed=8").model.state_dict(), first)


def test_nothing_is_written(tmp_path: Path) -> None:
    parts_of(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_lengths_follow_from_data_and_batch(tmp_path: Path) -> None:
    class Told(Toy):
        def begin(self, total_steps: int, steps_per_epoch: int) -> None:
            self.length = (total_steps, steps_per_epoch)

    config = toy_config(tmp_path, "training.num_steps=null", "training.num_epochs=3")
    recipe = Told(config.settings)
    parts = build(config, recipe, ALONE)
    assert (parts.total_steps, parts.loader.steps_per_epoch, parts.loader.length) == (15, 5, 10)
    assert recipe.length == (15, 5)
    assert parts_of(tmp_path, "training.num_steps=7").total_steps == 7


def test_evaluation_data_is_opened_before_anything_is_built(tmp_path: Path) -> None:
    class Missing(Toy):
        def check_evaluation_data(self) -> None:
            raise DataError("the test set is gone")

        def build_model(self) -> nn.Module:
            raise AssertionError("built too early")

    config = toy_config(tmp_path)
    with pytest.raises(DataError, match="the test set is gone"):
        build(config, Missing(config.settings), ALONE)


def test_only_what_needs_a_gradient_is_trained(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    trained = [name for name, value in parts.model.named_parameters() if value.requires_grad]
    assert "target.weight" not in trained
    assert len(parts.trainable.parameters) == len(trained) == 4
    grouped = [value for group in parts.optimizer.param_groups for value in group["params"]]
    assert {id(value) for value in grouped} == {id(value) for value in parts.trainable.parameters}


def test_an_average_is_a_copy_of_the_first_weights(tmp_path: Path) -> None:
    assert parts_of(tmp_path).average is None
    settings = ["training.ema_momentum=0.9", "training.ema_final_momentum=1.0"]
    parts = parts_of(tmp_path, *settings)
    assert parts.average is not None
    assert same_bits(parts.average.state_dict(), parts.model.state_dict())
    assert parts.average.first.weight is not parts.model.first.weight
    assert (parts.momentum(0), parts.momentum(12)) == (pytest.approx(0.9), pytest.approx(1.0))
    constant = parts_of(tmp_path, settings[0])
    assert constant.momentum(12) == pytest.approx(0.9)


def test_a_model_that_no_checkpoint_can_hold_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_model = Toy.build_model

    def with_rotation(toy: Toy) -> nn.Module:
        model = build_model(toy)
        model.register_buffer("rotation", torch.ones(2, dtype=torch.complex64), persistent=saved)
        return model

    monkeypatch.setattr(Toy, "build_model", with_rotation)
    saved = False
    parts_of(tmp_path)
    saved = True
    with pytest.raises(CheckpointError, match=r"rotation is a .*complex64.* persistent=False"):
        parts_of(tmp_path)


@pytest.mark.parametrize(
    ("precision", "enabled"), [("fp32", False), ("bf16", False), ("fp16", True)]
)
def test_only_fp16_has_a_scaler(precision: str, enabled: bool, tmp_path: Path) -> None:
    assert parts_of(tmp_path, f"training.precision={precision}").scaler.is_enabled() == enabled


def test_the_learning_rate_is_scaled_and_says_how(tmp_path: Path) -> None:
    settings = ["optimizer.lr_scaling=linear", "optimizer.lr_base_batch=8"]
    parts = parts_of(tmp_path, *settings)
    assert parts.learning_rate == pytest.approx(0.0025)
    assert parts.schedule(0) == pytest.approx(0.0025)
    section = toy_config(tmp_path, *settings).optimizer
    assert parts.rate_in_words(section) == {"base": 0.01, "rule": "linear", "used": 0.0025}


def test_phases_tell_data_from_the_rest(tmp_path: Path) -> None:
    phases = Phases()
    parts_of(tmp_path, phases=phases)
    assert list(phases.seconds) == ["data"]


def test_a_loader_may_be_handed_in(tmp_path: Path) -> None:
    """As `overt plan` does: no data set is opened."""
    loader = parts_of(tmp_path).loader
    missing = "data.broken_sample=0"
    assert parts_of(tmp_path, missing, loader=loader).loader is loader
    with pytest.raises(DataError, match="empty"):
        parts_of(tmp_path, "data.samples=0")


# --- weights of other runs ------------------------------------------------------------------------


def test_first_weights_come_from_a_checkpoint_which_is_then_kept(tmp_path: Path) -> None:
    train_toy(tmp_path / "first")
    source = tmp_path / "first/toy/checkpoints/latest"
    start = f"checkpoint.init_from={source}"
    parts = parts_of(tmp_path / "second", start)
    scratch = parts_of(tmp_path / "second")
    assert not same_bits(parts.model.state_dict(), scratch.model.state_dict())
    assert parts.loaded is not None
    assert storage.is_pinned(source.resolve())  # the first run's retention does not delete it
    resumed = parts_of(tmp_path / "third", start, loads_weights=False)
    assert resumed.loaded is None
    assert same_bits(resumed.model.state_dict(), scratch.model.state_dict())


def test_first_weights_that_are_not_there_are_noticed_before_data_is_made(tmp_path: Path) -> None:
    config = toy_config(tmp_path, f"checkpoint.init_from={tmp_path / 'nowhere'}")
    recipe = build_recipe(config)
    recipe.build_dataset = pytest.fail  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match=r"init_from=.*nowhere: no such checkpoint"):
        build(config, recipe, ALONE)


# --- strategies -----------------------------------------------------------------------------------


def test_one_process_wraps_nothing(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    wrapping = parts.wrapping
    assert wrapping.module is parts.model
    assert (wrapping.ddp, wrapping.sharded, wrapping.gradient_scale) == (None, None, 1)
    loss = torch.ones(())
    assert wrapping.scaled(loss) is loss  # no kernel for a factor of one
    assert replace(wrapping, gradient_scale=3).scaled(loss) == 3
    assert wrapping.has_blocks
    with wrapping.bare(parts.model) as bare:
        assert bare is parts.model
    assert wrapping.call(lambda *values: sum(values), 1, 2) == 3


@pytest.mark.parametrize(("strategy", "size"), [("single", 2), ("ddp", 1), ("fsdp", 1)])
def test_a_strategy_that_does_not_fit_the_launch_is_refused(
    strategy: str, size: int, tmp_path: Path
) -> None:
    config = toy_config(tmp_path, f"training.strategy={strategy}")
    recipe, world = build_recipe(config), World(0, size, 0, torch.device("cpu"))
    with pytest.raises(ConfigError, match=rf"training\.strategy={strategy} with {size} process"):
        wrap(config.training, recipe, world, recipe.build_model(), None)


def describe(folder: Path, strategy: str) -> dict[str, Any]:
    config = toy_config(folder, f"training.strategy={strategy}", "training.ema_momentum=0.9")
    world = init_distributed("cpu")
    parts = build(config, build_recipe(config), world)
    wrapping = parts.wrapping
    draw = torch.rand(1).item()
    with wrapping.bare(parts.model) as bare:
        whole = {name: value.tolist() for name, value in bare.state_dict().items()}
    return {
        "ddp": isinstance(wrapping.module, DistributedDataParallel),
        "sharded": wrapping.sharded is not None,
        "scale": wrapping.gradient_scale,
        "weights": whole,
        "draw": draw,
    }


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_start_with_the_same_weights_and_dropout_of_their_own(
    strategy: str, run_processes: RUNS, tmp_path: Path
) -> None:
    one, other = run_processes(describe, 2, tmp_path, strategy)
    assert (one["ddp"], one["sharded"]) == (strategy == "ddp", strategy == "fsdp")
    assert one["scale"] == 2  # torch averages gradients, our losses are to be added
    alone = parts_of(tmp_path, "training.ema_momentum=0.9").model.state_dict()
    expected = {name: value.tolist() for name, value in alone.items()}
    assert one["weights"] == other["weights"] == expected
    assert one["draw"] != other["draw"]


def test_a_custom_step_calls_methods_of_a_plain_model() -> None:
    model = nn.Linear(2, 1)
    wrapping = Wrapping(model)
    inputs = torch.ones(1, 2)
    assert torch.equal(wrapping.call(model.forward, inputs), model(inputs))


# --- what is printed ------------------------------------------------------------------------------


def test_the_introduction_counts_what_is_trained(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    parts = parts_of(tmp_path)
    text = introduction(config, parts, ALONE, "step 3", done=None, clock=State(step=3))
    everything = sum(value.numel() for value in parts.model.parameters())
    assert text.parameters == everything > text.trained_parameters
    assert text.trained_parameters == sum(value.numel() for value in parts.trainable.parameters)
    assert (text.samples, text.steps_per_epoch, text.total_steps) == (10, 5, 12)
    assert (text.device_name, text.resumed, text.loaded) == ("CPU", "step 3", None)
    assert text.schedule.startswith("0.01 at step 0")
