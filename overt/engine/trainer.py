"""THE file: one training run from its configuration to its last checkpoint.

`build` makes what computes, `train` is the loop, `train_step` is one optimizer step. Nothing is
subclassed: methods differ by their recipe. `run`, `checkpoint` and `health` get values.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from overt.checkpoint import random_state
from overt.checkpoint.manager import CheckpointManager
from overt.config import Config
from overt.distributed import World, open_store, seed_everything
from overt.engine.build import Parts, build, introduction
from overt.engine.carry import carried
from overt.engine.ending import Ending, refuse_nonfinite_weights
from overt.engine.guard import FiniteGuard, poison_if_nonfinite
from overt.engine.loader import MicroBatch, global_counts
from overt.engine.optimizer import clip_gradients, set_learning_rate, set_weight_decay
from overt.engine.patience import Patience
from overt.engine.precision import AUTOCAST
from overt.engine.progress import Progress
from overt.engine.replay import Replay
from overt.engine.returned import returned
from overt.engine.scoring import Cadence, reason_to_end, score
from overt.engine.state import State, checking_resumed, join_recipe_state, split_recipe_state
from overt.engine.strategy.automatic import Attempt
from overt.engine.strategy.ddp import average_over_ranks, settle_buckets
from overt.engine.trainable import Only
from overt.engine.training_files import continue_run, is_training_file
from overt.engine.transfer import Transfer
from overt.errors import Interrupted, NonFiniteError, Preempted
from overt.health.heartbeat import Heartbeat
from overt.health.nonfinite import check_gradients
from overt.health.phases import Phases
from overt.health.preemption import Preemption, StopSignal
from overt.health.profile import StepProfile
from overt.nn.ema import update_ema
from overt.recipe import Recipe, StepOutput
from overt.run import messages
from overt.run.events import Finished, Started, StopRequested
from overt.run.resume import has_to_resume, named_checkpoint
from overt.run.session import Held, Run, lets_go_on_failure


class Trainer:
    """One training run. Build it on every rank, then call `train`."""

    @lets_go_on_failure
    def __init__(
        self,
        config: Config,
        recipe: Recipe,
        world: World,
        stop: StopSignal | None = None,
        phases: Phases | None = None,
        parts: Parts | None = None,
        lock: Held | None = None,  # of the run folder, where the caller holds it
    ) -> None:
        self.config, self.recipe, self.world, self.device = config, recipe, world, world.device
        self.stop, self.phases = stop or StopSignal(), phases or Phases()  # until the first step
        alone = parts is not None  # for a step alone: nothing is written, resumed or heard
        self.run = Run(config, world, silent=alone)
        self.run.take_lock(lock)
        resumes = not alone and has_to_resume(config)
        parts = parts or build(config, recipe, world, loads_weights=not resumes, phases=self.phases)
        self.parts, self.plan, self.loader = parts, parts.plan, parts.loader
        self.model, self.average, self.wrapping = parts.model, parts.average, parts.wrapping
        self.optimizer, self.scaler, self.schedule = parts.optimizer, parts.scaler, parts.schedule
        self.trainable, self.parameters = parts.trainable, parts.trainable.parameters
        self.total_steps = self.run.console.total_steps = parts.total_steps
        training, paths = config.training, self.run.paths
        self.dtype = AUTOCAST.get(training.precision)
        self.state, self.gradients_checked, self.guard = State(), False, FiniteGuard(self.device)
        self.speed = Attempt(parts.speed, recipe, self.model, self.run.record, self.state)
        self.graphed = self.speed.recorded(self.run_pass, self.parameters)
        self.patience = Patience(training.patience, config.checkpoint)
        self.cadence = Cadence(recipe, training)
        self.progress = Progress(config, world, parts.total_steps, self.run)
        self.spikes, self.pace = self.progress.spikes, self.progress.pace
        bare = partial(self.wrapping.bare, self.model)
        self.to_device = Transfer(recipe, self.device, records=self.graphed is not None)
        self.replay = Replay(recipe, bare, self.to_device, self.autocast)
        stores = [None if alone else open_store(name) for name in ("stop", "heartbeat")]
        self.preemption = Preemption(self.stop, world, stores[0], training.timeout_minutes)
        self.heartbeat = Heartbeat.of_run(training, world, stores[1], paths.hang)
        self.profile = StepProfile(training, paths.profile, world)
        self.manager = CheckpointManager.of_run(config, paths.checkpoints)
        self.manager.on_saved, self.manager.before_save = self.run.record_saved, self.run.lock.check
        watching = (self.heartbeat, self.preemption, self.manager, self.run)
        self.ending = Ending(parts, self.state, *watching)
        self.check_weights = partial(refuse_nonfinite_weights, parts, self.run, self.manager)
        self.phases.end("model")
        resumed = self.resume() if resumes else None
        self.phases.end("load")
        self.logger = self.run.open(self.state.step if resumes else None, self.state.wandb_run_id)
        done = (self.state.finished or "all steps are done") if self.is_done() else None
        self.run.introduce(partial(introduction, config, parts, world, resumed, done, self.state))

    def train(self) -> dict[str, float]:
        """Train to the last step; log, evaluate and save when due. Return the last scores."""
        with self.stop, self.ending.in_order(self.save, self.close):  # SIGTERM asks for a save
            self.preemption.listen()
            self.heartbeat.start()
            self.stop_if_asked()
            if self.config.training.evaluate_at_start and self.state.step == 0:
                self.evaluate()
            if self.state.evaluated_step < self.state.step:
                self.evaluate_and_save()  # stopped between a step and its evaluation
            while not self.is_done():
                with self.profile.around(self.state.step + 1):
                    self.train_step()
                if not self.phases.told:
                    self.settle()  # the device has finished the first step as well
                    self.trainable.check()
                    self.run.record(Started.after(self.phases, self.state.step))
                    self.stop.start_is_over()  # from now on a signal waits for the end of a step
                if self.is_due(self.config.logging.every_steps):
                    self.log()
                self.stop_if_asked()
                self.evaluate_and_save()
        return self.state.scores

    def train_step(self) -> None:
        """Run one optimizer step over one global batch."""
        self.heartbeat.at(self.state.step, "waiting for data")
        batch = self.loader.next_step()
        self.phases.end("first batch")
        self.heartbeat.at(self.state.step, "computing")
        counts = global_counts(self.recipe, batch, self.device)  # what the losses are divided by
        self.speed.begin(partial(self.replay.loss_of, batch, counts, self.state.step))
        step = self.recipe.custom_step(self, batch.micro_batches, counts)
        if step is None:  # the usual update
            step = (self.add_gradients(batch.micro_batches, counts), *self.update())
        outputs, grad_norm, applied = returned(self.recipe, "custom_step", step)
        applied = self.guard.all_applied(applied)  # a step of several updates is made if all were
        if self.average is not None:
            update_ema(self.average, self.model, self.parts.momentum(self.state.updates), applied)
        carry = carried(outputs, batch, self.plan, self.recipe.gathers_carry)
        updates = self.state.updates  # from here on nothing waits for the device
        self.progress.add_step(self.state.step + 1, batch, outputs, applied, grad_norm)
        self.guard.remember(self.state.step, batch, counts, applied, outputs)
        self.state.position, self.state.scores = self.loader.position, {}
        self.state.step += 1
        # Last: the step counts as made where a recipe stops the run in here, which saves it.
        self.recipe.after_step(self.model, updates, applied, carry)

    def add_gradients(
        self, micro_batches: list[MicroBatch], counts: dict[str, Tensor], only: Only = None
    ) -> list[StepOutput]:
        """Run forward and backward; reduce gradients, of `only` or all parameters, over ranks."""
        outputs, wrapping = [], self.wrapping
        variant = self.speed.variant(self.state.step) if only is None else 0
        with self.trainable.gradients_for(only) as parameters:
            for index, micro in enumerate(micro_batches):
                batch = self.to_device(micro.batch)
                # Gradients meet across ranks on the last micro-batch; before, they add up locally.
                is_last = index == len(micro_batches) - 1
                if wrapping.sharded is not None:
                    early = self.config.training.reduce_every_micro_batch
                    wrapping.sharded.set_requires_gradient_sync(is_last or early)
                syncs = is_last and only is None  # DDP reduces all parameters, or none
                with nullcontext() if syncs or wrapping.ddp is None else wrapping.ddp.no_sync():
                    if self.graphed is None or variant == 0 or micro.is_padding:
                        outputs.append(self.run_pass(batch, counts, micro.is_padding))
                    else:
                        outputs.append(self.graphed(batch, counts, variant))
        if only is None and not self.gradients_checked:
            self.gradients_checked = True
            check_gradients(self.model, wrapping.reduces(only), self.run.console.say)
        if self.world.world_size > 1 and not wrapping.reduces(only):
            average_over_ranks(parameters)
        self.spikes.see(outputs, only)
        return outputs

    def run_pass(self, batch: Any, counts: dict[str, Tensor], padding: bool = False) -> StepOutput:
        """Run forward and backward of one micro-batch."""
        self.pace.begin_forward()
        with self.autocast():
            output = self.recipe.loss(self.wrapping.module, batch, counts, self.state.step)
        self.pace.end_forward()
        returned(self.recipe, "loss", output)
        if padding:
            output = output.scaled(0.0)
        loss = self.wrapping.scaled(poison_if_nonfinite(output.total))
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return output

    def update(self, only: Only = None) -> tuple[Tensor, Tensor]:
        """Step parameters, of `only` or all; return the gradient norm, and 1, or 0 if skipped."""
        self.settle()  # by now the outcome of the previous step has arrived
        with self.trainable.only_gradients_of(only, self.scaler.is_enabled()) as parameters:
            self.scaler.unscale_(self.optimizer)  # clip true gradients, not scaled ones
            self.progress.see_gradients(self.model, self.state.step + 1)
            grad_norm = clip_gradients(parameters, self.config.training.grad_clip_norm)
            # 0 where the norm is non-finite, or the loss a spike that is to be skipped.
            applied = self.guard.protect(self.optimizer, grad_norm, self.spikes.allows())
            set_learning_rate(self.optimizer, self.schedule, self.state.updates)
            set_weight_decay(self.optimizer, self.parts.weight_decay, self.state.updates)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
        return grad_norm, applied

    def settle(self) -> None:
        """Read the outcome of the last step; record a skipped one, or stop because of it."""
        verdict = self.guard.take()
        if verdict is None or self.state.counts_as_made(verdict.was_applied()):
            return
        training = self.config.training
        event = self.replay.explain(verdict, training.name_nonfinite_module, self.spikes.limit)
        self.run.record(event)
        # With fp16 a single overflow is the scaler's to handle: it lowers its scale.
        stops = training.nonfinite == "stop" and not (self.scaler.is_enabled() or event.is_spike)
        if stops or self.state.skipped_in_a_row >= training.max_skipped_in_a_row:
            raise NonFiniteError(messages.stopped_by_nonfinite(event, self.state.skipped_in_a_row))

    def stop_if_asked(self) -> None:
        """Stop here if a signal asks for it; all ranks pass here in the same order and agree."""
        if name := self.preemption.signal_here():
            self.settle()
            self.run.record(event := StopRequested(self.state.step, self.total_steps, name))
            kind = Interrupted if name == "SIGINT" else Preempted
            raise kind(messages.stopped_by_signal(event, self.run.paths.checkpoints))

    def evaluate_and_save(self) -> None:
        """Do what may be due after a step."""
        if due := self.cadence.due(self.is_due):
            self.evaluate(due)
            self.stop_if_asked()
        if self.is_due(self.config.checkpoint.every_steps) and not self.state.is_saved:
            self.trainable.check()
            self.save()

    def log(self) -> None:
        """Log losses and speeds since the last line. One reduction; every rank takes part."""
        self.trainable.check()
        self.progress.count_flops(self.replay, self.guard.pending)
        self.settle()
        epoch = self.state.step / self.loader.steps_per_epoch
        rate = float(self.optimizer.param_groups[0]["lr"])
        self.run.write_line(self.progress.read(self.state.step, epoch, rate, self.state.skipped))

    def evaluate(self, sets: list[str] | None = None) -> dict[str, float]:
        """Return scores on these sets, or on all, of the averaged weights where there are any."""
        self.heartbeat.at(self.state.step, "evaluating")
        self.trainable.check()
        self.settle()
        self.check_weights(self.state.step)
        scores = self.score(sets)
        reason = reason_to_end(self.recipe, scores) or self.patience.see(scores)
        if ends := reason is not None and 0 < self.state.step < self.total_steps:
            self.state.finished = reason  # now sets are due that wait for the last step
            scores |= self.score(self.cadence.others(sets))
        self.state.record_scores(scores)
        self.run.write_scores(scores, self.state.step)
        if ends:
            self.run.record(Finished(self.state.step, str(reason)))
        return scores

    def score(self, sets: list[str] | None) -> dict[str, float]:
        """Return the scores alone; pictures are logged."""
        weights = self.wrapping.bare(self.model if self.average is None else self.average)
        log = partial(self.run.logger.log_sample, step=self.state.step)
        with self.progress.pause(partial(self.preemption.leave_evaluation, self.stop_if_asked)):
            return score(self.recipe, weights, self.world, self.autocast(), log, sets)

    def save(self) -> None:
        """Save everything that a bitwise resume needs. Every rank takes part."""
        self.heartbeat.at(self.state.step, "saving")
        self.settle()
        self.check_weights(self.state.step)
        tensors, plain = split_recipe_state(self.recipe)
        is_ranked = self.cadence.ranks(self.config.checkpoint.metric_name, self.state.scores)
        with self.progress.pause():
            self.manager.save_checkpoint(
                self.state.position.epoch,
                self.model,
                self.optimizer,
                scaler=self.scaler,
                metrics=self.state.scores,
                is_best=None if is_ranked else False,
                step=self.state.step,
                ema=self.average,
                state=self.state_dict() | {"recipe": plain},
                tensors=random_state.capture_all() | tensors,
                config_yaml=self.config.text,
            )
        self.state.saved_step = self.state.step

    def state_dict(self) -> dict[str, Any]:
        """Return what, besides tensors, brings the run back to this step, from its owners."""
        self.state.wandb_run_id = self.run.logger.wandb_run_id or self.state.wandb_run_id
        return {
            **self.state.state_dict(),
            **self.loader.state_dict(),
            **self.progress.state_dict(),
            "patience": self.patience.state_dict(),
            "learning_rate": self.parts.rate_in_words(self.config.optimizer),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.state.load_state_dict(state)
        self.progress.load_state_dict(state, self.world)
        self.patience.load_state_dict(state.get("patience"))
        self.state.finished = None if self.patience.continues() else self.state.finished
        self.loader.seek(self.state.position)

    def resume(self) -> str:
        """Resume from where `checkpoint.resume` says; return where that is."""
        if self.wrapping.ddp is not None and self.world.world_size > 2:
            step = self.loader.first_step()
            counts = global_counts(self.recipe, step, self.device)
            settle_buckets(partial(self.add_gradients, step.micro_batches, counts), self.parameters)
        named = self.state.resumed_from = named_checkpoint(self.config, self.run.console.say)
        if is_training_file(named):
            return continue_run(named, self.parts, self.state, self.config.checkpoint)
        stored = (self.model, self.optimizer, self.scaler)
        saved = self.manager.load_checkpoint(named, *stored, ema=self.average)
        with checking_resumed(saved, self.config, self.parts, self.state):
            self.load_state_dict(saved["state"])
            self.recipe.load_state_dict(join_recipe_state(saved["tensors"], saved["state"]))
        self.state.saved_step, self.state.scores = self.state.step, saved["metrics"]
        # Last of all, so that nothing draws from them before the first step.
        if not random_state.restore_own(saved["tensors"], self.world.rank):  # more ranks than then
            seed_everything(self.config.seed + self.state.step, self.world.rank)
        return self.state.describe(saved["path"])

    def is_done(self) -> bool:
        """Return whether nothing is left to train: all steps are done, or the recipe is."""
        return self.state.step >= self.total_steps or self.state.finished is not None

    def is_due(self, every_steps: int | None) -> bool:
        """Return whether something with this interval is due now; after the last step all is."""
        return self.is_done() or (every_steps is not None and self.state.step % every_steps == 0)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of 16-bit matrix products where `training.precision` asks for them."""
        return torch.autocast(self.device.type, self.dtype) if self.dtype else nullcontext()

    def close(self, error: BaseException | None = None) -> None:
        """End loader, writer and logs. The end is recorded once the last file is safe."""
        self.ending.close(self.profile, error, self.is_done())
