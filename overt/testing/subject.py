"""What the checks share: a small configuration, and the runs that several look at."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from overt.config import Config, build_recipe
from overt.config.python import configure, dotted, is_importable
from overt.distributed import World, init_distributed, shutdown
from overt.engine.loader import StepBatch, StepLoader
from overt.engine.trainer import Trainer
from overt.errors import OvertError
from overt.recipe import Recipe
from overt.tools.proof.processes import Group
from overt.tools.proof.purity import Purity, check_purity

RANKS = 2
DEADLINE = 600.0  # seconds for a group of processes
STEPS, RESUMED_AT = 3, 1  # of the run that is interrupted
COMPARED_STEPS = 2  # of runs that must agree: the second shows the update of the first

# As little as possible besides the recipe: exact arithmetic, no trackers, every step logged.
TRAINING: dict[str, Any] = {
    "num_steps": 100,
    "num_epochs": None,
    "batch_size": None,
    "global_batch_size": None,
    "accumulation_steps": None,
    "num_workers": 0,
    "device": "cpu",
    "strategy": "auto",
    "precision": "fp32",
    "compile": "none",
    "cuda_graph": False,
    "activation_checkpointing": False,
    "nonfinite": "stop",
    "loss_spike": "ignore",
    "profile_steps": None,
}
LOGGING: dict[str, Any] = {
    "every_steps": 1,
    "use_tensorboard": False,
    "use_wandb": False,
    "system_metrics": False,
    "norms_depth": None,
    "histograms_every_steps": None,
    "model_flops": False,
    "trackers": [],
}
CHECKPOINT = {"background": False, "metric_name": None, "keep_last_n": STEPS, "resume": "auto"}
# Schedules are the engine's, and a warm-up would leave nothing to see in a few steps.
SCHEDULE = {"_target_": "overt.schedule.ConstantScheduler"}


class Skipped(Exception):  # noqa: N818, not an error: the check does not apply
    """Why a check does not apply to this recipe."""


class Row(NamedTuple):
    """The numbers of one step."""

    loss: float
    gradient_norm: float


Curve = dict[int, Row]  # by step


@dataclass(frozen=True)
class Trained:
    """A run in this process."""

    config: Config
    curve: Curve
    recipe: Recipe
    model: nn.Module
    first: StepBatch

    def checkpoint(self, step: int) -> Path:
        return self.config.run_dir / "checkpoints" / f"step_{step:08d}"


@dataclass
class Subject:
    """A recipe on trial. Runs are made when first asked for, and kept."""

    config: Config  # as the user gave it
    folder: Path  # of all runs
    samples: int = 4  # of a global batch
    steps: int = 20  # on the repeated batch
    falls_to: float = 0.9  # of the first loss
    tolerance: float = 1e-4  # relative, of losses and gradient norms
    strategies: tuple[str, ...] = ()  # trained in one group of processes: to start it takes longest
    _spread: dict[str, Curve | str] = field(default_factory=dict)  # by strategy; or what failed

    @cached_property
    def small(self) -> Config:
        """The configuration with all but the recipe reduced to the least."""
        return configure(
            self.config,
            output_dir=self.folder,
            training={**TRAINING, "global_batch_size": self.samples},
            optimizer={"lr_scaling": "none"},
            schedule=SCHEDULE,
            logging=LOGGING,
            checkpoint=CHECKPOINT,
        )

    @cached_property
    def recipe(self) -> Recipe:
        return build_recipe(self.small)

    @cached_property
    def world(self) -> World:
        return init_distributed("cpu")

    @property
    def largest(self) -> int:
        """Samples of a micro-batch."""
        return 1 if isinstance(self.recipe.stackable, str) else self.samples

    @cached_property
    def purity(self) -> Purity:
        config = self.named("pure", batch_size=self.largest)
        return check_purity(config, self.world)

    @property
    def evaluating(self) -> bool:
        """Whether runs are compared in evaluation mode, without dropout and batch statistics."""
        return not self.purity.is_function_of_samples

    def named(self, name: str, **training: Any) -> Config:
        """Return the small configuration of a separate run."""
        return configure(self.small, exp_name=name, training=training)

    @cached_property
    def whole(self) -> Trained:
        """A run of a few steps, saved on the way."""
        config = self.named("whole", batch_size=self.largest)
        return train_here(config, STEPS, saved=(RESUMED_AT, STEPS))

    @cached_property
    def resumed(self) -> Trained:
        """The same run, continued from its first checkpoint by a new recipe."""
        target = self.folder / "resumed"
        shutil.copytree(self.whole.config.run_dir, target, symlinks=True)
        shutil.rmtree(target / "checkpoints" / f"step_{STEPS:08d}")
        return train_here(self.named("resumed", batch_size=self.largest), STEPS, saved=(STEPS,))

    @cached_property
    def reference(self) -> Curve:
        """The first steps of one process with one micro-batch."""
        if not self.evaluating:
            return self.whole.curve
        config = self.named("reference", batch_size=self.largest)
        return train_here(config, COMPARED_STEPS, evaluating=True).curve

    @cached_property
    def accumulated(self) -> Curve:
        config = self.named("accumulated", batch_size=max(self.largest // 2, 1))
        return train_here(config, COMPARED_STEPS, evaluating=self.evaluating).curve

    @cached_property
    def repeated(self) -> Curve:
        """Many steps on one batch."""
        config = self.named("repeated", batch_size=self.largest)
        return train_here(config, self.steps, repeats=True).curve

    def spread(self, strategy: str) -> Curve:
        """Return the first steps of two processes."""
        if strategy not in self._spread:
            self._train_in_processes([strategy, *self.strategies])
        curve = self._spread[strategy]
        assert not isinstance(curve, str), curve
        return curve

    def need_importable(self) -> None:
        kind = type(self.recipe)
        if not is_importable(kind):
            raise Skipped(f"other processes cannot import {dotted(kind)}")

    def _train_in_processes(self, strategies: Sequence[str]) -> None:
        self.need_importable()
        size = max(self.largest // RANKS, 1)
        configs = {
            strategy: self.named(strategy, batch_size=size, strategy=strategy)
            for strategy in dict.fromkeys(strategies)
        }
        log = self.folder / "processes.log"
        arguments = [([*configs.values()], COMPARED_STEPS, self.evaluating)] * RANKS
        ended = Group(train_as_rank, arguments, log, {"OMP_NUM_THREADS": "1"}).wait(DEADLINE, 15.0)
        for strategy, config in configs.items():
            curve = read_curve(config.run_dir)
            self._spread[strategy] = curve
            if len(curve) < COMPARED_STEPS:
                lines = log.read_text(errors="replace").splitlines()[-8:]
                last = "\n  ".join(lines or ["nothing but what is above"])
                self._spread[strategy] = (
                    f"{RANKS} processes with training.strategy={strategy} ended with exit codes "
                    f"{ended.codes}; the last they printed:\n  {last}"
                )


def train_here(
    config: Config,
    steps: int,
    saved: Sequence[int] = (),
    evaluating: bool = False,
    repeats: bool = False,
) -> Trained:
    """Train a few steps in this process."""
    world = init_distributed("cpu")
    recipe = build_recipe(config)
    with redirect_stdout(StringIO()):
        trainer = Trainer(config, recipe, world)
        try:
            first = trainer.loader.first_step()
            if repeats:
                repeat_first_step(trainer.loader)
            make_steps(trainer, steps, saved, evaluating)
        except OvertError as error:
            raise AssertionError(f"{config.exp_name}: {error}") from error
        finally:
            trainer.close()
    return Trained(config, read_curve(config.run_dir), recipe, trainer.model, first)


def train_as_rank(configs: Sequence[Config], steps: int, evaluating: bool) -> int:
    """Train each of the configurations as one of several processes."""
    for config in configs:
        trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
        make_steps(trainer, steps, (), evaluating)
        trainer.close()
        del trainer  # before the process group goes
    shutdown()
    return 0


def make_steps(trainer: Trainer, steps: int, saved: Sequence[int], evaluating: bool) -> None:
    trainer.model.train(not evaluating)
    while trainer.state.step < steps:
        trainer.train_step()
        trainer.log()
        if trainer.state.step in saved:
            trainer.save()


def read_curve(run: Path) -> Curve:
    """Return the logged steps of a run; none where it did not start."""
    file = run / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {
        row["step"]: Row(float(row["train/loss"]), float(row["train/grad_norm"]))
        for row in rows
        if "train/loss" in row
    }


def repeat_first_step(loader: StepLoader) -> None:
    """Let the loader hand out its first batch again and again."""
    first = loader.next_step()
    loader.next_step = lambda: first  # type: ignore[method-assign]
