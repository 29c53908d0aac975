"""overt/engine/replay.py: a step's loss computed again, without a trace in model or generators."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from toy_recipe.recipe import Toy
from toy_runs import make_trainer, same_bits

from overt.checkpoint import random_state
from overt.engine.guard import Verdict
from overt.engine.replay import Replay

MICRO_BATCHES = ["training.batch_size=1", "training.accumulation_steps=2"]


class Normed(Toy):
    """Has buffers that a forward pass changes, and dropout."""

    def build_model(self) -> Any:
        model = super().build_model()
        model.dropout = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5))
        return model


def step_and_replay(folder: Path, *overrides: str, recipe: type[Toy] = Toy) -> tuple[Any, Verdict]:
    trainer = make_trainer(folder, *overrides, recipe=recipe)
    trainer.train_step()
    verdict = trainer.guard.pending
    assert verdict is not None
    return trainer, verdict


def test_the_loss_is_that_of_the_step_over_its_micro_batches(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, *MICRO_BATCHES)
    state = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train_step()
    verdict = trainer.guard.pending
    trainer.model.load_state_dict(state)  # as it was when the loss was computed
    assert float(trainer.replay.loss(trainer.model, verdict)) == pytest.approx(
        float(verdict.own_loss), rel=1e-6
    )
    trainer.close()


@pytest.mark.parametrize("what", ["flops", "nonfinite_module"])
def test_nothing_is_left_behind(what: str, tmp_path: Path) -> None:
    # Batch norm needs two values, and mixes samples: good enough to have buffers that move.
    trainer, verdict = step_and_replay(tmp_path, recipe=Normed)
    gradient = torch.ones_like(trainer.model.first.weight)
    trainer.model.first.weight.grad = gradient.clone()
    state = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    generators = random_state.capture()
    getattr(trainer.replay, what)(verdict)
    assert all(
        torch.equal(value, state[name]) for name, value in trainer.model.state_dict().items()
    )
    assert torch.equal(trainer.model.first.weight.grad, gradient)
    assert trainer.model.last.weight.grad is None
    assert same_bits(random_state.capture(), generators)
    trainer.close()


def test_flops_are_those_of_all_micro_batches(tmp_path: Path) -> None:
    trainer, verdict = step_and_replay(tmp_path, *MICRO_BATCHES)
    # Two layers of 4 x 8: 2 operations a product, forward and gradient of the weights for both,
    # gradient of the input for the second, 2 samples.
    assert trainer.replay.flops(verdict) == 2 * (2 * 4 * 8) * 5
    trainer.close()


def test_the_module_that_made_nan_is_named_and_none_where_all_is_finite(tmp_path: Path) -> None:
    trainer, verdict = step_and_replay(tmp_path)
    assert trainer.replay.nonfinite_module(verdict) is None
    with torch.no_grad():
        trainer.model.last.bias[0] = torch.inf
    assert trainer.replay.nonfinite_module(verdict) == "last (Linear, forward)"
    trainer.close()


def test_batches_pass_through_on_device_and_autocast(tmp_path: Path) -> None:
    trainer, verdict = step_and_replay(tmp_path)
    seen = []

    def to_device(batch: Any) -> Any:
        seen.append(batch)
        return batch

    class Asks(Toy):
        def loss(self, model: Any, batch: Any, counts: Any, step: int) -> Any:
            assert torch.is_autocast_enabled("cpu")
            assert step == 0
            return super().loss(model, batch, counts, step)

    replay = Replay(
        Asks(trainer.config.settings),
        lambda: nullcontext(trainer.model),
        to_device,
        lambda: torch.autocast("cpu", torch.bfloat16),
    )
    assert replay.flops(verdict) > 0
    assert seen == [micro.batch for micro in verdict.batch.micro_batches]
    trainer.close()
