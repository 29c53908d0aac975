"""overt/engine/trainable.py: what trains is fixed at the start; `only` narrows single passes."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_gan import Gan, Model
from torch import Tensor, nn
from toy_recipe.recipe import Toy
from toy_runs import losses_by_step, same_bits, toy_config, weights

from overt.config import build_recipe
from overt.distributed import init_distributed
from overt.engine.optimizer import members
from overt.engine.trainable import Trainable
from overt.engine.trainer import Trainer
from overt.errors import ConfigError
from overt.recipe import Recipe, StepOutput
from overt.tools.plan.engine_step import EngineStep

RUNS = Callable[..., list[Any]]
# The critic has a class and a learning rate of its own.
TWO_CLASSES = (
    r"optimizer.rules=[{match: '^critic\.', _target_: torch.optim.SGD, lr: 0.1, weight_decay: 0}]"
)
GLOBAL_FOUR = ["training.global_batch_size=4", "training.batch_size=1"]


def make(folder: Path, *overrides: str, recipe: type[Recipe] = Gan) -> Trainer:
    config = toy_config(folder, *overrides)
    return Trainer(config, recipe(config.settings), init_distributed("cpu"))


# --- choosing -------------------------------------------------------------------------------------


def test_prefixes_choose_parameters_by_name() -> None:
    trainable = Trainable(Model(3))
    assert len(trainable.chosen(None)) == 8
    assert trainable.chosen("critic.") == list(trainable.named.values())[4:]
    both = trainable.chosen(("generator.0.", "critic.2."))
    assert both == [
        trainable.named[f"{name}.{kind}"]
        for name in ("generator.0", "critic.2")
        for kind in ("weight", "bias")
    ]


def test_a_prefix_of_nothing_is_refused_with_those_that_exist() -> None:
    trainable = Trainable(Model(3))
    with pytest.raises(ConfigError, match=r"only='critc\.'.* begin with generator\., critic\."):
        trainable.chosen(("generator.", "critc."))


def test_others_are_constants_of_the_pass_and_as_before_after_it() -> None:
    model = Model(3)
    model.generator[0].bias.requires_grad_(False)
    trainable = Trainable(model)
    flags = [value.requires_grad for value in model.parameters()]
    with trainable.gradients_for("generator."):
        made, _ = model(torch.ones(2, 4), torch.ones(2, 4), "generator")
        made.sum().backward()
    assert [value.requires_grad for value in model.parameters()] == flags
    with_gradient = {name for name, value in model.named_parameters() if value.grad is not None}
    assert with_gradient == {"generator.0.weight", "generator.2.weight", "generator.2.bias"}


def test_gradients_of_others_wait_out_of_sight() -> None:
    model = Model(3)
    trainable = Trainable(model)
    for parameter in trainable.parameters:
        parameter.grad = torch.ones_like(parameter)
    with trainable.only_gradients_of("critic.") as chosen:
        assert all(value.grad is not None for value in chosen)
        assert all(value.grad is None for value in model.generator.parameters())
        for parameter in chosen:
            parameter.grad = None
    assert all(value.grad is not None for value in model.generator.parameters())
    assert all(value.grad is None for value in model.critic.parameters())
    with pytest.raises(ConfigError, match=r"precision=fp16 .* generator\.0\.weight.* wait"):
        trainable.only_gradients_of("critic.", scaled=True).__enter__()


# --- a change of requires_grad --------------------------------------------------------------------


class Thaws(Toy):
    """Unfreezes a layer in the middle of training."""

    def after_step(self, model: Any, step: int, applied: Tensor, carry: dict[str, Tensor]) -> None:
        super().after_step(model, step, applied, carry)
        if step == 4:
            model.target.requires_grad_(True)


class Freezes(Gan):
    """Freezes a network in the middle of training, which passes with `only` must not undo."""

    def after_step(self, model: Any, step: int, applied: Tensor, carry: dict[str, Tensor]) -> None:
        if step == 4:
            model.critic[0].requires_grad_(False)


@pytest.mark.parametrize(
    ("recipe", "name", "now"),
    [(Thaws, "target.weight, target.bias", "True"), (Freezes, "critic.0.weight", "False")],
)
@pytest.mark.parametrize(
    ("every", "due"),
    [("logging.every_steps=3", 6), ("training.evaluate_every_steps=7", 7)],
)
def test_a_change_after_the_start_is_refused_when_something_is_due(
    recipe: type[Recipe], name: str, now: str, every: str, due: int, tmp_path: Path
) -> None:
    rare = ["logging.every_steps=100", "checkpoint.every_steps=100"]
    trainer = make(tmp_path, *rare, every, recipe=recipe)
    with pytest.raises(ConfigError, match=rf"first {name}.* \(now {now}\)") as refused:
        trainer.train()
    assert trainer.state.step == due
    for remedy in ("build_model", "checkpoint.init_from"):
        assert remedy in str(refused.value)


def test_a_change_is_refused_before_a_checkpoint_is_written(tmp_path: Path) -> None:
    trainer = make(tmp_path, "logging.every_steps=100", "checkpoint.every_steps=5", recipe=Thaws)
    with pytest.raises(ConfigError, match="requires_grad of 2"):
        trainer.train()
    assert not list((tmp_path / "toy/checkpoints").glob("step_*"))


def test_a_change_in_the_first_step_is_refused_after_it(tmp_path: Path) -> None:
    class AtOnce(Toy):
        def after_step(
            self, model: Any, step: int, applied: Tensor, carry: dict[str, Tensor]
        ) -> None:
            model.target.requires_grad_(True)

    trainer = make(tmp_path, "logging.every_steps=100", recipe=AtOnce)
    with pytest.raises(ConfigError, match="requires_grad"):
        trainer.train()
    assert trainer.state.step == 1


def test_gradients_that_a_step_leaves_are_refused(tmp_path: Path) -> None:
    class Forgetful(Gan):
        def custom_step(
            self, trainer: Any, micro_batches: list[Any], counts: dict[str, Tensor]
        ) -> tuple[list[StepOutput], Tensor, Tensor]:
            step = super().custom_step(trainer, micro_batches, counts)
            trainer.add_gradients(micro_batches, counts, only="critic.")
            return step

    with pytest.raises(ConfigError, match=r"leaves gradients behind, of critic\.0\.weight"):
        make(tmp_path, recipe=Forgetful).train()


# --- two networks in turns ------------------------------------------------------------------------


class Watched(Gan):
    """Remembers whose gradients were there in each turn."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.seen: list[tuple[str, set[str]]] = []

    def see(self, trainer: Any, turn: str) -> None:
        named = trainer.model.named_parameters()
        owners = {name.partition(".")[0] for name, value in named if value.grad is not None}
        self.seen.append((turn, owners))


def reference(folder: Path, steps: int) -> tuple[Model, list[float]]:
    """The same GAN by hand, with an optimizer for each network."""
    trainer = make(folder)  # for its first weights and its batches
    model, config = trainer.model, trainer.config.optimizer
    generator = torch.optim.AdamW(
        model.generator.parameters(),
        betas=config.arguments["betas"],
        eps=config.arguments["eps"],
        weight_decay=config.weight_decay,
        fused=True,
    )
    critic = torch.optim.SGD(model.critic.parameters(), fused=True)
    recipe, losses = trainer.recipe, []
    for step in range(steps):
        rate = trainer.schedule(step)
        batch = trainer.loader.next_step()
        counts = {"samples": torch.tensor(float(batch.samples))}
        for turn, optimizer, factor in (("critic", critic, 10.0), ("generator", generator, 1.0)):
            model.zero_grad()
            own = replace(batch.micro_batches[0].batch, turn=turn)
            loss = recipe.loss(model, own, counts, step).total
            loss.backward()
            nn.utils.clip_grad_norm_(getattr(model, turn).parameters(), 1.0)
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
        losses.append(loss.item())
    model.zero_grad()
    trainer.close()
    return model, losses


def test_turns_are_what_a_loop_by_hand_does(tmp_path: Path) -> None:
    model, losses = reference(tmp_path / "by_hand", 12)
    trainer = make(tmp_path, TWO_CLASSES, recipe=Watched)
    assert [type(one).__name__ for one in members(trainer.optimizer)] == ["AdamW", "SGD"]
    trainer.train()
    assert list(losses_by_step(tmp_path / "toy").values()) == pytest.approx(losses, rel=1e-5)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], value)
    # Gradients of the network that waits were never made.
    assert trainer.recipe.seen == [("critic", {"critic"}), ("generator", {"generator"})] * 12
    # Two updates a step, and one step of the schedule.
    assert trainer.state.updates == 12
    assert all(value.requires_grad for value in trainer.model.parameters())


def train_gan(
    folder: Path, *overrides: str, die_at: int | None = None
) -> list[tuple[str, set[str]]]:
    """Train as one of several processes; whose gradients were there in each turn."""
    import os
    import signal

    class Dying(Watched):
        def see(self, trainer: Any, turn: str) -> None:
            super().see(trainer, turn)
            if trainer.state.step == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    trainer = make(folder, *overrides, recipe=Dying)
    trainer.train()
    seen = list(trainer.recipe.seen)
    del trainer
    return seen


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_equal_one(strategy: str, run_processes: RUNS, tmp_path: Path) -> None:
    settings = [TWO_CLASSES, *GLOBAL_FOUR]
    run_processes(train_gan, 1, tmp_path / "1", *settings)
    both = run_processes(train_gan, 2, tmp_path / "2", *settings, f"training.strategy={strategy}")
    for seen in both:
        assert seen == [("critic", {"critic"}), ("generator", {"generator"})] * 12
    expected = losses_by_step(tmp_path / "1/toy")
    assert len(expected) == 12
    assert losses_by_step(tmp_path / "2/toy") == pytest.approx(expected, rel=1e-5)


def test_three_processes_resume_bit_for_bit(run_processes: RUNS, tmp_path: Path) -> None:
    """DDP has buckets to settle before a resume, but no part in these passes."""
    settings = [TWO_CLASSES, "training.ema_momentum=0.9", "checkpoint.every_steps=1"]
    run_processes(train_gan, 3, tmp_path / "whole", *settings)
    codes = run_processes(train_gan, 3, tmp_path, *settings, dies=True, die_at=6)
    assert -9 in codes
    run_processes(train_gan, 3, tmp_path, *settings)
    for part in ("model", "optimizer", "ema"):
        one, other = (weights(path / "toy", 12, part) for path in (tmp_path, tmp_path / "whole"))
        assert same_bits(one, other), part


class HalfNaN(Gan):
    """The critic's loss is NaN in one step; the generator's never is."""

    def loss(
        self, model: nn.Module, batch: Any, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        output = super().loss(model, batch, counts, step)
        return output.scaled(math.nan) if (step, batch.turn) == (3, "critic") else output


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_with_one_bad_update_counts_as_skipped(precision: str, tmp_path: Path) -> None:
    """Although custom_step returns the outcome of its last update, which was made."""
    settings = [f"training.precision={precision}", "training.num_steps=4"]
    trainer = make(tmp_path, *settings, recipe=HalfNaN)
    for _ in range(3):
        trainer.train_step()
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    trainer.train_step()
    trainer.settle()
    assert trainer.state.skipped == 1
    assert trainer.state.updates == 3
    after = trainer.model.state_dict()
    for name, value in before.items():
        assert torch.equal(after[name], value) == name.startswith("critic."), name
    trainer.close()


def test_a_spike_cannot_be_judged_over_several_losses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"loss_spike=skip with add_gradients\(only='critic\.'\)"):
        make(tmp_path, "training.loss_spike=skip").train()


def test_turns_can_be_planned(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    recipe = Watched(config.settings)
    memory = EngineStep(config, recipe, checkpointing=False).run(recipe.example_batch(2), 2)
    assert memory.gradients > 0
    assert recipe.seen == [("critic", {"critic"}), ("generator", {"generator"})]


def test_passes_of_all_and_of_some_can_be_mixed(run_processes: RUNS, tmp_path: Path) -> None:
    """DDP reduces the one and has no part in the other."""
    one, *both = [
        result for size in (1, 2) for result in run_processes(mixed_gradients, size, tmp_path)
    ]
    for gradients in both:
        assert gradients == pytest.approx(one, rel=1e-5)


def mixed_gradients(folder: Path) -> list[float]:
    config = toy_config(folder, *GLOBAL_FOUR)
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
    sums: list[float] = []
    for only in (None, "last.", None, ("first.", "last.bias")):
        batch = trainer.loader.next_step()
        counts = {"samples": torch.tensor(4.0), "entries": torch.tensor(8.0)}
        trainer.add_gradients(batch.micro_batches, counts, only=only)
        if only == "last.":  # twice: what has met before is not counted again
            trainer.add_gradients(batch.micro_batches, counts, only=only)
        named = trainer.model.named_parameters()
        sums += [float(value.grad.sum()) for _, value in named if value.grad is not None]
        trainer.optimizer.zero_grad()
    trainer.close()
    del trainer
    return sums
