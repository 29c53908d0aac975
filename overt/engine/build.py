"""From a configuration to what computes: loader, model, strategy, optimizer, schedules.

`build` is a straight line; nothing is wrapped anywhere else. It writes nothing and resumes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from overt.checkpoint import storage
from overt.checkpoint.named_tensors import named_tensors
from overt.checkpoint.tensor_files import check_storable
from overt.checkpoint.trained import SHIPPED_PREFIX, shipped_weights
from overt.checkpoint.weights import load_initial
from overt.config import Config
from overt.config.batch import BatchPlan, check_stackable, plan_batches, scaled_learning_rate
from overt.config.schema import OptimizerSection, TrainingSection
from overt.distributed import World, is_main_process, seed_everything
from overt.engine.loader import StepLoader
from overt.engine.optimizer import (
    build_optimizer,
    check_levels,
    parameters_of_each,
    weight_decay_schedule,
)
from overt.engine.precision import set_precision, slow_precision
from overt.engine.returned import returned
from overt.engine.strategy.automatic import HasStep, Speed, choose, fit_memory
from overt.engine.strategy.blocks import compile_model, need_blocks, recompute_in_backward
from overt.engine.strategy.fsdp import (
    WholeModel,
    call_gathered,
    refuse_contradictions,
    shard_in_place,
)
from overt.engine.strategy.graph import check_replayable
from overt.engine.trainable import Only, Trainable
from overt.errors import CheckpointError, ConfigError
from overt.health.phases import Phases
from overt.nn.ema import make_average
from overt.recipe import Recipe
from overt.run.folder import RunPaths
from overt.run.messages import Introduction
from overt.schedule import (
    EMAScheduler,
    HierarchicalScheduler,
    Scheduler,
    describe,
    refuse_overflow,
)
from overt.schedule_section import build_schedule

# Buffers are not broadcast before each forward pass; torch 2.13 has renamed the switch.
_SWITCHES = inspect.signature(DistributedDataParallel).parameters
_SWITCH = "forward_sync_buffers" if "forward_sync_buffers" in _SWITCHES else "broadcast_buffers"
BUFFERS_STAY: dict[str, Any] = {_SWITCH: False}


@dataclass
class Parts:
    """What a run computes with."""

    plan: BatchPlan
    loader: StepLoader
    total_steps: int
    model: nn.Module  # bare: what is evaluated and saved
    average: nn.Module | None  # EMA of its weights
    wrapping: Wrapping
    speed: Speed  # what is compiled and recorded
    trainable: Trainable
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    learning_rate: float  # after the scaling rule
    schedule: Scheduler | HierarchicalScheduler
    weight_decay: Callable[[int], Any] | None
    momentum: EMAScheduler
    loaded: str | None  # which tensors checkpoint.init_from has filled

    def rate_in_words(self, optimizer: OptimizerSection) -> dict[str, Any]:
        """Return how the learning rate was derived; checkpoints store it."""
        return {
            "base": optimizer.lr,
            "rule": optimizer.lr_scaling,
            "used": self.learning_rate,
        }


@dataclass
class Wrapping:
    """The model as the recipe's loss gets it, and how gradients are reduced across ranks."""

    module: nn.Module
    ddp: DistributedDataParallel | None = None
    sharded: FSDPModule | None = None
    whole: WholeModel | None = None  # the bare twin of a sharded model
    # Gradients are averaged over ranks; our losses are already divided by global counts, so
    # multiply by the world size.
    gradient_scale: int = 1
    has_blocks: bool = False  # that could be recomputed

    def reduces(self, only: Only) -> bool:
        """Return whether torch reduces these gradients: FSDP does any, DDP all or none."""
        return self.sharded is not None or (self.ddp is not None and only is None)

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss whose gradients, averaged over ranks, are those of the sum."""
        return loss if self.gradient_scale == 1 else loss * self.gradient_scale

    def bare(self, model: nn.Module) -> AbstractContextManager[nn.Module]:
        """Return the model as its author wrote it; a sharded one is gathered inside the context."""
        return nullcontext(model) if self.whole is None else self.whole.gathered(model)

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the bare model outside of its forward pass, for a `custom_step`."""
        if self.sharded is None:
            return method(*arguments)
        return call_gathered(self.module, method, *arguments)


def build(
    config: Config,
    recipe: Recipe,
    world: World,
    *,
    loader: StepLoader | None = None,
    loads_weights: bool = True,
    phases: Phases | None = None,
) -> Parts:
    """Build everything that a step needs.

    A resumed run has no use for the weights of `checkpoint.init_from`: it passes
    `loads_weights=False`.
    """
    training, phases = config.training, phases or Phases()
    plan = plan_batches(training, world.world_size)
    check_stackable(recipe, plan)
    source = initial_weights(config) if loads_weights else None  # before data is generated
    if loader is None:
        loader = build_loader(config, recipe, plan, world)
        recipe.check_evaluation_data()  # a run reads nothing later that was not opened here
    steps_per_epoch = loader.steps_per_epoch
    total_steps = training.num_steps or (training.num_epochs or 0) * steps_per_epoch
    epochs = total_steps / steps_per_epoch
    recipe.begin(total_steps, steps_per_epoch)
    phases.end("data")

    set_precision(training.precision, training.deterministic)
    seed_everything(config.seed)  # the same initial weights on every rank
    fitted = fit_memory(training, recipe, plan.batch_size, world.device)
    model = returned(recipe, "build_model", recipe.build_model()).to(world.device)
    for name, tensor in named_tensors(model).items():
        check_storable(name, tensor)  # now, not at the first save
    loaded = load_initial_weights(config, model, recipe.unscored, source)
    # Copies of the bare model, taken before anything is compiled or wrapped.
    average = None if training.ema_momentum is None else make_average(model)
    whole_model = WholeModel(model) if training.strategy == "fsdp" else None
    seed_everything(config.seed, world.rank)  # from here on each rank has its own dropout
    speed = choose(training, recipe, model, world, total_steps, fitted)
    wrapping = wrap(speed.at_start(), recipe, world, model, average)
    wrapping.whole, wrapping.has_blocks = whole_model, bool(recipe.blocks(model))

    groups = returned(recipe, "parameter_groups", recipe.parameter_groups(model))
    optimizer = build_optimizer(config.optimizer, model, groups)
    learning_rate = scaled_learning_rate(config.optimizer, plan.global_batch_size)
    schedule = build_schedule(config.schedule, learning_rate, epochs, steps_per_epoch)
    check_levels(optimizer, schedule)
    refuse_overflow(schedule, total_steps)
    momentum = training.ema_momentum or 0.0
    final = momentum if training.ema_final_momentum is None else training.ema_final_momentum
    return Parts(
        plan=plan,
        loader=loader,
        total_steps=total_steps,
        model=model,
        average=average,
        wrapping=wrapping,
        speed=speed,
        trainable=Trainable(model),
        optimizer=optimizer,
        # bf16 has the range of fp32: it runs no scaler. A disabled scaler passes everything on.
        scaler=torch.amp.GradScaler(world.device.type, enabled=training.precision == "fp16"),
        learning_rate=learning_rate,
        schedule=schedule,
        weight_decay=weight_decay_schedule(config.optimizer, epochs, steps_per_epoch),
        momentum=EMAScheduler(momentum, final, epochs, steps_per_epoch),
        loaded=loaded,
    )


def build_loader(config: Config, recipe: Recipe, plan: BatchPlan, world: World) -> StepLoader:
    """Return the loader over the recipe's training samples."""
    return StepLoader(
        recipe.build_dataset(),
        recipe.collate,
        plan,
        world,
        seed=config.seed,
        drop_last=config.training.drop_last,
        num_workers=config.training.num_workers,
        warnings=RunPaths(config.run_dir).warnings_of(world.rank),
    )


def wrap(
    training: TrainingSection,
    recipe: Recipe,
    world: World,
    model: nn.Module,
    average: nn.Module | None,
) -> Wrapping:
    """Compile, checkpoint and distribute the model, in place where torch allows it."""
    blocks = returned(recipe, "blocks", recipe.blocks(model))
    if training.activation_checkpointing:
        recompute_in_backward(need_blocks(blocks, "training.activation_checkpointing"))
    if training.compile in ("blocks", "model"):
        compile_model(recipe, model, training)
    replays = training.cuda_graph is True
    if replays:
        check_replayable(recipe, world.device)
    match training.strategy:
        case "auto" | "ddp" if world.world_size > 1 and not replays:
            ddp = DistributedDataParallel(
                model,
                find_unused_parameters=False,
                gradient_as_bucket_view=True,
                **BUFFERS_STAY,
            )
            return Wrapping(ddp, ddp=ddp, gradient_scale=world.world_size)
        case "fsdp" if world.world_size > 1:
            units = returned(recipe, "shard_units", recipe.shard_units(model))
            refuse_contradictions(training, units)
            sharded = shard_in_place(model, units, world)
            if average is not None:  # never run, so it needs no units
                shard_in_place(average, [], world)
            return Wrapping(model, sharded=sharded, gradient_scale=world.world_size)
        case "auto" | "ddp" if world.world_size > 1:
            # DDP's hooks cannot be replayed: we reduce after the pass.
            return Wrapping(model, gradient_scale=world.world_size)
        case "auto" | "single" if world.world_size == 1:
            return Wrapping(model)
        case strategy:
            raise ConfigError(
                f"training.strategy={strategy} with {world.world_size} process(es): single "
                "takes one process, ddp and fsdp take several (torchrun or srun), auto takes "
                "either"
            )


def introduction(
    config: Config,
    parts: Parts,
    world: World,
    resumed: str | None,
    done: str | None,
    clock: HasStep,
) -> Introduction:
    """Return what is printed when a run starts."""
    cuda = world.device.type == "cuda"
    return Introduction(
        config,
        parts.plan,
        torch.cuda.get_device_name(world.device) if cuda else world.device.type.upper(),
        parameters=sum(parameter.numel() for parameter in parts.model.parameters()),
        trained_parameters=sum(parameter.numel() for parameter in parts.trainable.parameters),
        samples=parts.loader.length,
        steps_per_epoch=parts.loader.steps_per_epoch,
        total_steps=parts.total_steps,
        optimizers=parameters_of_each(parts.optimizer),
        learning_rate=parts.learning_rate,
        schedule=describe(parts.schedule, parts.total_steps),
        loaded=parts.loaded,
        slow=slow_precision(config.training.precision, world.device),
        resumed=resumed,
        done=done,
        step=clock.step,
    )


def initial_weights(config: Config) -> Path | None:
    """Return the file or folder that `checkpoint.init_from` names, or refuse."""
    source = config.checkpoint.init_from
    if source is None:
        return None
    if source.startswith(SHIPPED_PREFIX):
        return shipped_weights(source.removeprefix(SHIPPED_PREFIX))
    if not Path(source).exists():
        raise CheckpointError(f"checkpoint.init_from={source}: no such checkpoint; check the path")
    return Path(source)


def load_initial_weights(
    config: Config, model: nn.Module, unscored: tuple[str, ...], source: Path | None
) -> str | None:
    """Load the weights that a run starts from, if any; return what became of each of them."""
    if source is None:
        return None
    rename = [(rule.match, rule.to) for rule in config.checkpoint.init_map]
    report = load_initial(source, model, config.checkpoint.init_skip, unscored, rename)
    if is_main_process() and source.is_dir():
        # Another run's retention does not delete what this one starts from.
        storage.pin(source, f"{config.run_dir} starts from it")
    return str(report)
