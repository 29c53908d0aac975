"""THE file: one training run from its configuration to its last checkpoint.

`Trainer.__init__` builds everything in a straight line, `train` is the loop, `train_step` is one
optimizer step. Nothing is wrapped out of sight and nothing is subclassed: what differs between
methods is the recipe.
"""

from __future__ import annotations

import inspect
import logging
import math
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from overt.checkpoint import random_state
from overt.config import Config
from overt.distributed import World, gather_objects, open_store, seed_everything
from overt.engine.batch import check_stackable, plan_batches, scaled_learning_rate
from overt.engine.ending import ends_in_order
from overt.engine.guard import (
    FiniteGuard,
    Interval,
    Verdict,
    first_nonfinite_module,
    idle_parameters,
    poison_if_not_finite,
)
from overt.engine.loader import (
    MicroBatch,
    StepLoader,
    global_counts,
)
from overt.engine.optimizer import (
    build_optimizer,
    check_levels,
    clip_gradients,
    set_learning_rate,
    set_weight_decay,
    weight_decay_schedule,
)
from overt.engine.precision import AUTOCAST, memory_in_use, set_precision
from overt.engine.spikes import SpikeWatch
from overt.engine.state import State
from overt.engine.strategy.blocks import compile_model, need_blocks, recompute_in_backward
from overt.engine.strategy.fsdp import (
    WholeModel,
    call_gathered,
    refuse_contradictions,
    shard_in_place,
)
from overt.engine.strategy.graph import (
    GraphedPass,
    add_over_processes,
    check_replayable,
    replays_at,
)
from overt.errors import ConfigError, NonFiniteError, Preempted
from overt.health.heartbeat import Heartbeat
from overt.health.observe import Observer
from overt.health.pace import Pace, StragglerWatch
from overt.health.phases import Phases
from overt.health.preemption import Preemption, StopSignal
from overt.health.profile import StepProfile
from overt.nested import map_tensors
from overt.nn.ema import make_average, update_ema
from overt.recipe import Recipe, StepOutput
from overt.run import run_folder
from overt.run.console import Console, Meter
from overt.run.warning_file import WarningFile, path_of
from overt.schedule import EMAScheduler, build_schedule

# Buffers are not sent around before each forward pass; torch 2.13 has renamed the switch.
_SWITCHES = inspect.signature(DistributedDataParallel).parameters
_SWITCH = "forward_sync_buffers" if "forward_sync_buffers" in _SWITCHES else "broadcast_buffers"
BUFFERS_STAY: dict[str, Any] = {_SWITCH: False}


class Trainer:
    """One training run. Build it on every process, then call `train`."""

    def __init__(
        self,
        config: Config,
        recipe: Recipe,
        world: World,
        stop: StopSignal | None = None,
        phases: Phases | None = None,
    ) -> None:
        self.config, self.recipe, self.world, self.device = config, recipe, world, world.device
        training = config.training
        self.state = State()
        self.saved_step: int | None = None  # the step of a checkpoint that lacks nothing
        self.gradients_checked = False
        self.phases = phases or Phases()  # of this start; they end with the first step
        self.plan = plan_batches(training, world.world_size)
        check_stackable(recipe, self.plan)
        self.loader = StepLoader(
            recipe.build_dataset(),
            recipe.collate,
            self.plan,
            world,
            seed=config.seed,
            drop_last=training.drop_last,
            num_workers=training.num_workers,
            warnings=path_of(config.run_dir, world.rank),
        )
        steps_per_epoch = self.loader.steps_per_epoch
        self.total_steps = training.num_steps or (training.num_epochs or 0) * steps_per_epoch
        if hasattr(recipe, "begin"):
            recipe.begin(self.total_steps, steps_per_epoch)
        self.phases.end("data")
        self.console = Console(self.total_steps, enabled=world.is_main)
        self.handler = self.console.handler()  # warnings do not tear the progress line
        self.warned = WarningFile(path_of(config.run_dir, world.rank))
        logging.getLogger("overt").addHandler(self.handler)
        logging.getLogger("overt").addHandler(self.warned)

        set_precision(training.precision, training.deterministic)
        seed_everything(config.seed)  # the same first weights on every process
        self.model: nn.Module = recipe.build_model().to(self.device)
        resumes = run_folder.has_to_resume(config)
        loaded = None if resumes else run_folder.load_initial_weights(config, self.model)
        # Copies of the bare model, taken before anything is compiled or wrapped.
        self.average = None if training.ema_momentum is None else make_average(self.model)
        self.whole = WholeModel(self.model) if training.strategy == "fsdp" else None
        seed_everything(config.seed, world.rank)  # from here on its own dropout on each

        blocks = recipe.blocks(self.model) if hasattr(recipe, "blocks") else []
        if training.activation_checkpointing:
            recompute_in_backward(need_blocks(blocks, "training.activation_checkpointing"))
        if training.compile != "none":
            compile_model(recipe, self.model, training)

        # What the recipe's loss is given; the bare model is what is evaluated and saved.
        self.wrapped: nn.Module = self.model
        self.ddp: DistributedDataParallel | None = None
        self.sharded: FSDPModule | None = None
        # The shares of all processes are to be added up, where DDP and FSDP take their mean.
        self.share = 1
        match training.strategy:
            case "auto" | "ddp" if world.world_size > 1 and not training.cuda_graph:
                self.wrapped = self.ddp = DistributedDataParallel(
                    self.model,
                    device_ids=[self.device] if self.device.type == "cuda" else None,
                    find_unused_parameters=False,
                    gradient_as_bucket_view=True,
                    **BUFFERS_STAY,
                )
                self.share = world.world_size
            case "fsdp" if world.world_size > 1:
                units = recipe.shard_units(self.model) if hasattr(recipe, "shard_units") else blocks
                refuse_contradictions(training, units)
                self.sharded = shard_in_place(self.model, units, world)
                if self.average is not None:  # never run, so in one piece
                    shard_in_place(self.average, [], world)
                self.share = world.world_size
            case "auto" | "ddp" if world.world_size > 1:
                pass  # DDP's hooks cannot be replayed: gradients are added up after the pass
            case "auto" | "single" if world.world_size == 1:
                pass
            case strategy:
                raise ConfigError(
                    f"training.strategy={strategy} with {world.world_size} process(es): single "
                    "takes one process, ddp and fsdp take several (torchrun or srun), auto takes "
                    "either"
                )

        groups = (
            recipe.parameter_groups(self.model) if hasattr(recipe, "parameter_groups") else None
        )
        self.optimizer = build_optimizer(config.optimizer, self.model, groups)
        self.parameters = [value for value in self.model.parameters() if value.requires_grad]
        self.graphed: GraphedPass | None = None
        if training.cuda_graph:
            check_replayable(recipe, self.device)
            self.graphed = GraphedPass(self.run_pass, self.parameters)
        self.learning_rate = scaled_learning_rate(config.optimizer, self.plan.global_batch_size)
        epochs = self.total_steps / steps_per_epoch
        self.schedule = build_schedule(config.schedule, self.learning_rate, epochs, steps_per_epoch)
        check_levels(self.optimizer, self.schedule)
        self.weight_decay = weight_decay_schedule(config.optimizer, epochs, steps_per_epoch)
        momentum = training.ema_momentum or 0.0
        final = momentum if training.ema_final_momentum is None else training.ema_final_momentum
        self.momentum = EMAScheduler(momentum, final, epochs, steps_per_epoch)

        # bf16 has the range of fp32: it runs no scaler. A disabled scaler passes everything on.
        self.dtype = AUTOCAST.get(training.precision)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=training.precision == "fp16")

        self.stop = stop or StopSignal()
        self.preemption = Preemption(self.stop, world, open_store("stop"), training.timeout_minutes)
        self.heartbeat = Heartbeat(
            world,
            open_store("heartbeat"),
            config.run_dir / "hang",
            training.hang_minutes,
            ends_process=training.hang == "stop",
        )
        self.guard = FiniteGuard(self.device)
        self.spikes = SpikeWatch(training, self.device)
        self.interval = Interval(self.device)
        self.pace, self.meter = Pace(self.device), Meter()
        self.hosts = gather_objects(socket.gethostname())  # of every rank, for messages
        self.stragglers = StragglerWatch()
        self.observer = Observer()
        self.profile = StepProfile(training, config.run_dir, world)
        self.manager = run_folder.open_checkpoints(config)
        self.phases.end("model")
        if resumes and self.ddp is not None and world.world_size > 2:
            self.settle_buckets()
        resumed_from = self.resume() if resumes else None
        self.phases.end("load")
        run_folder.prepare(config, world)
        self.logger = run_folder.open_logger(config, self.state, resumes)
        run_folder.introduce(self, resumed_from, loaded)

    def train(self) -> dict[str, float]:
        """Train to the last step; log, evaluate and save when due. The last scores."""
        # In here SIGTERM and SIGUSR1 ask for a save, and do nothing else.
        with self.stop, ends_in_order(self):
            self.preemption.listen()
            self.heartbeat.start()
            self.stop_if_asked()
            if self.config.training.evaluate_at_start and self.state.step == 0:
                self.evaluate()
            if self.state.evaluated_step < self.state.step:
                self.evaluate_and_save()  # stopped between a step and its evaluation
            while self.state.step < self.total_steps:
                with self.profile.around(self.state.step + 1):
                    self.train_step()
                self.state.step += 1
                if not self.phases.told:
                    run_folder.note_start(self)
                if self.is_due(self.config.logging.every_steps):
                    self.log()
                self.stop_if_asked()
                self.evaluate_and_save()
        return self.state.scores

    def train_step(self) -> None:
        """One optimizer step over one global batch."""
        self.heartbeat.at(self.state.step, "waiting for data")
        group = self.loader.next_group()
        self.heartbeat.at(self.state.step, "computing")
        counts = global_counts(self.recipe, group, self.device)  # what the losses are divided by
        if hasattr(self.recipe, "custom_step"):
            step = self.recipe.custom_step(self, group.micro_batches, counts)
        else:
            outputs = self.add_gradients(group.micro_batches, counts)
            step = (outputs, *self.update())
        outputs, grad_norm, applied = step
        if self.average is not None:
            update_ema(self.average, self.model, self.momentum(self.state.updates), applied)
        if hasattr(self.recipe, "after_step"):
            self.recipe.after_step(self.model, self.state.updates, applied)
        # Nothing below waits for the device.
        self.interval.add(outputs, applied, grad_norm)
        self.guard.remember(self.state.step, group, counts, applied, outputs)
        self.state.position = self.loader.position
        self.state.scores = {}
        self.meter.step(group.samples, group.wait_seconds)
        self.pace.add_step(group.wait_seconds)

    def add_gradients(
        self, micro_batches: list[MicroBatch], counts: dict[str, Tensor]
    ) -> list[StepOutput]:
        """Forward and backward of this process's micro-batches; gradients of all processes meet."""
        outputs = []
        graphed = self.graphed if replays_at(self.recipe, self.state.step) else None
        for index, micro in enumerate(micro_batches):
            batch = self.to_device(micro.batch)
            # Gradients meet across processes only on the last micro-batch; before, they add up.
            is_last = index == len(micro_batches) - 1
            if self.sharded is not None:
                early = self.config.training.reduce_every_micro_batch
                self.sharded.set_requires_gradient_sync(is_last or early)
            with nullcontext() if is_last or self.ddp is None else self.ddp.no_sync():
                if graphed is None or micro.is_padding:
                    outputs.append(self.run_pass(batch, counts, micro.is_padding))
                else:
                    outputs.append(graphed(batch, counts))
        if self.graphed is not None and self.world.world_size > 1:
            add_over_processes(self.parameters)
        if not self.gradients_checked:
            self.check_gradients()
        self.spikes.see(outputs)
        return outputs

    def run_pass(
        self, batch: Any, counts: dict[str, Tensor], is_padding: bool = False
    ) -> StepOutput:
        """Forward and backward of one micro-batch."""
        self.pace.begin_forward()
        with self.autocast():
            output = self.recipe.loss(self.wrapped, batch, counts, self.state.step)
        self.pace.end_forward()
        if is_padding:
            output = output.scaled(0.0)
        loss = poison_if_not_finite(output.total)
        loss = loss if self.share == 1 else loss * self.share
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return output

    def update(self) -> tuple[Tensor, Tensor]:
        """One step of the optimizer: the gradient's norm, and 1, or 0 where it was skipped."""
        self.settle()  # by now the outcome of the step before has arrived
        self.scaler.unscale_(self.optimizer)  # clip true gradients, not scaled ones
        self.observer.gradients(self)
        grad_norm = clip_gradients(self.parameters, self.config.training.grad_clip_norm)
        # 0 where the norm is not finite, or the loss a spike that is to be skipped.
        applied = self.guard.protect(self.optimizer, grad_norm, self.spikes.allows())
        set_learning_rate(self.optimizer, self.schedule, self.state.updates)
        set_weight_decay(self.optimizer, self.weight_decay, self.state.updates)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return grad_norm, applied

    def settle(self) -> None:
        """Read what became of the last step; note a skipped one, or stop because of it."""
        verdict = self.guard.take()
        if verdict is None:
            return
        if verdict.was_applied():
            self.state.skipped_in_a_row = 0
            return
        self.state.skipped += 1
        self.state.skipped_in_a_row += 1
        module, spiked = None, bool(verdict.spiked)
        if self.config.training.name_nonfinite_module and not spiked:
            with random_state.undisturbed(), self.bare(self.model) as model:
                found = first_nonfinite_module(model, partial(self.replay, model, verdict))
            # It may have been on another process; every process skips, so every one takes part.
            module = next(filter(None, gather_objects(found)), None)
        message = run_folder.note_skipped(self, verdict, module)
        # With fp16 a single overflow is the scaler's to mend: it lowers its scale.
        stops = self.config.training.nonfinite == "stop" and not self.scaler.is_enabled()
        stops = stops and not spiked
        if stops or self.state.skipped_in_a_row >= self.config.training.max_skipped_in_a_row:
            raise NonFiniteError(message)

    def replay(self, model: nn.Module, verdict: Verdict) -> Tensor:
        """This process's loss of a step once more, on the bare model."""
        losses = []
        for micro in verdict.group.micro_batches:
            batch = self.to_device(micro.batch)
            with self.autocast():
                output = self.recipe.loss(model, batch, verdict.counts, verdict.step)
            losses.append(output.total)
        return torch.stack(losses).sum()

    def stop_if_asked(self) -> None:
        """Stop here if a signal asks for it; processes come by in the same order and agree."""
        name = self.preemption.signal_here()
        if name is not None:
            self.settle()
            raise Preempted(run_folder.note_preempted(self, name))

    def evaluate_and_save(self) -> None:
        """What may be due after a step."""
        if self.is_due(self.config.training.evaluate_every_steps):
            self.evaluate()
            self.stop_if_asked()
        if self.is_due(self.config.checkpoint.every_steps) and self.saved_step != self.state.step:
            self.save()

    def log(self) -> None:
        """Losses and speeds since the last log line. One reduction; every process takes part."""
        self.observer.before_log(self)
        self.settle()
        totals = self.interval.totals(self.pace.read())
        self.interval.reset()
        rates = self.meter.read()
        run_folder.note_spikes(self, self.spikes.add(totals.losses, self.state.step - 1))
        run_folder.note_straggler(self, totals.said, rates.seconds_per_step)
        steps = totals.steps or math.nan
        numbers = {name: value / steps for name, value in totals.sums.items()}
        numbers["lr"] = float(self.optimizer.param_groups[0]["lr"])
        numbers["epoch"] = self.state.step / self.loader.steps_per_epoch
        shown = {"loss": numbers["loss"], "lr": numbers["lr"]}
        memory = memory_in_use(self.device)
        self.console.update(
            self.state.step, numbers["epoch"], shown, memory_bytes=memory, **rates._asdict()
        )
        numbers["skipped_steps"] = self.state.skipped
        numbers["memory_gib"] = memory / 2**30
        if math.isfinite(rates.seconds_per_step):  # the first steps are no measure
            numbers |= rates._asdict()
        numbers = {f"train/{name}": value for name, value in numbers.items()}
        self.logger.log_metrics(numbers | self.observer.numbers(self, rates), self.state.step)

    def evaluate(self) -> dict[str, float]:
        """The recipe's scores, with the averaged weights where there are any."""
        self.heartbeat.at(self.state.step, "evaluating")
        self.settle()
        weights = self.model if self.average is None else self.average
        with self.meter.pause(), random_state.undisturbed(), self.bare(weights) as model:
            was_training = model.training
            model.eval()
            try:
                with torch.inference_mode(), self.autocast():
                    scores = self.recipe.evaluate(model, self.world)
                    if self.world.is_main and hasattr(self.recipe, "visualize"):
                        for name, picture in self.recipe.visualize(model).items():
                            self.logger.log_picture(name, picture, self.state.step)
            finally:
                model.train(was_training)
        self.state.scores, self.state.evaluated_step = scores, self.state.step
        self.saved_step = None
        self.logger.log_metrics(scores, self.state.step, prefix="evaluation")
        self.console.say(run_folder.score_line(self.state.step, scores))
        return scores

    def save(self) -> None:
        """Save everything a bitwise resume needs. Every process takes part."""
        self.heartbeat.at(self.state.step, "saving")
        self.settle()
        with self.meter.pause():
            self.manager.save_checkpoint(
                self.state.position.epoch,
                self.model,
                self.optimizer,
                scaler=self.scaler,
                metrics=self.state.scores,
                is_best=None if run_folder.has_ranking_score(self) else False,
                step=self.state.step,
                ema=self.average,
                state=run_folder.state_of(self),
                tensors=random_state.capture_all(),
                config_yaml=self.config.text,
            )
        self.saved_step = self.state.step

    def resume(self) -> Path:
        """Go on from the checkpoint that `checkpoint.resume` names; its path."""
        named = None if self.config.checkpoint.resume == "auto" else self.config.checkpoint.resume
        saved = self.manager.load_checkpoint(
            named, self.model, self.optimizer, self.scaler, ema=self.average
        )
        run_folder.refuse_other_run(self, saved)
        run_folder.restore_state(self, saved["state"])
        self.saved_step = self.state.step
        self.loader.seek(self.state.position)
        # Last of all, so that nothing draws from them any more before the first step.
        if not random_state.restore_own(saved["tensors"], self.world.rank):
            # More processes than before: a fresh stream that no process had.
            seed_everything(self.config.seed + self.state.step, self.world.rank)
        path: Path = saved["path"]
        return path

    def settle_buckets(self) -> None:
        """A pass that is thrown away, before the state is loaded.

        After its first backward pass DDP packs its messages anew, which changes the order of the
        sums over three or more processes; that of two is the same either way. A resumed run has to
        be past that, as it was before.
        """
        group = self.loader.first_group()
        with random_state.undisturbed():
            self.add_gradients(group.micro_batches, global_counts(self.recipe, group, self.device))
        self.optimizer.zero_grad(set_to_none=True)

    def is_due(self, every: int | None) -> bool:
        """Every so many steps, and after the last."""
        step = self.state.step
        return step == self.total_steps or (every is not None and step % every == 0)

    def bare(self, model: nn.Module) -> AbstractContextManager[nn.Module]:
        """The model as its author wrote it; a sharded one is gathered for as long as this lasts."""
        return nullcontext(model) if self.whole is None else self.whole.gathered(model)

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """A method of the model, called outside of its forward pass by a `custom_step`."""
        if self.sharded is None:
            return method(*arguments)
        return call_gathered(self.model, method, *arguments)

    def autocast(self) -> AbstractContextManager[Any]:
        """16-bit matrix products where `training.precision` asks for them."""
        return torch.autocast(self.device.type, self.dtype) if self.dtype else nullcontext()

    def to_device(self, batch: Any) -> Any:
        """The batch on this process's device as the loss takes it; nobody waits for the copy."""
        if self.device.type != "cpu":
            batch = map_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=True))
        return self.recipe.on_device(batch) if hasattr(self.recipe, "on_device") else batch

    def check_gradients(self) -> None:
        """After the first backward pass: DDP would wait for a gradient that never comes."""
        self.gradients_checked = True
        message = idle_parameters(self.model)
        if message and self.share > 1:
            raise ConfigError(message)
        if message:
            self.console.say(f"one process trains all the same, several would not: {message}")

    def close(self) -> None:
        """End loader, writer and logs; a failed background write surfaces here."""
        self.profile.close()
        self.heartbeat.close()
        self.preemption.close()
        self.loader.close()
        self.console.close()
        logging.getLogger("overt").removeHandler(self.handler)
        logging.getLogger("overt").removeHandler(self.warned)
        self.logger.finish(exit_code=0 if self.state.step == self.total_steps else 1)
        self.manager.wait()
