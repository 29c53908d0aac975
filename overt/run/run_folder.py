"""What lies in a run's folder, and when a run may go on from it.

runs/NAME/
  config.yaml        the resolved configuration; `overt train --config` starts from it alone
  command.txt        every command that worked on this run, with its time
  metrics.jsonl      losses, rates, scores by step         events.jsonl   restarts, skipped steps
  checkpoints/       step_00001000/ ..., latest and best   tensorboard/   the same for its viewer
  pictures/          what the recipe drew                  skipped/       samples of skipped steps
  warnings/          what each process warned of, and its loader processes
  hang/              stacks and collectives of every process, if the run ever stood still
"""

from __future__ import annotations

import json
import logging
import math
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf
from torch import nn

from overt.checkpoint import storage
from overt.checkpoint.manager import CheckpointManager
from overt.checkpoint.weights import load_initial
from overt.config import Config, differences, import_target
from overt.distributed import World, broadcast_object, is_main_process
from overt.engine.batch import advice, learning_rates
from overt.engine.guard import Verdict
from overt.engine.loader import Position
from overt.engine.spikes import Spike
from overt.errors import CheckpointError, ConfigError
from overt.run.log import MetricsLogger
from overt.run.trackers import TrackerMaker
from overt.schedule import describe

if TYPE_CHECKING:
    from overt.engine.state import State
    from overt.engine.trainer import Trainer

logger = logging.getLogger(__name__)

# Settings that may change between two sessions of a run without changing what it computes.
FREE_TO_CHANGE = (
    "exp_name",
    "output_dir",
    "logging",
    "checkpoint",
    "evaluation",
    "data.root",
    "training.batch_size",  # the global batch is compared by itself
    "training.global_batch_size",
    "training.accumulation_steps",
    "training.num_workers",
    "training.device",
    "training.strategy",
    "training.reduce_every_micro_batch",
    "training.evaluate_every_steps",
    "training.evaluate_at_start",
    "training.nonfinite",
    "training.max_skipped_in_a_row",
    "training.name_nonfinite_module",
    "training.loss_spike",
    "training.loss_spike_deviations",
    "training.loss_spike_window",
    "training.timeout_minutes",
    "training.profile_steps",
    "training.memory_snapshot",
    "training.hang_minutes",
    "training.hang",
)


def prepare(config: Config, world: World) -> None:
    """Make the folder and write down configuration and command; the main process only."""
    if not world.is_main:
        return
    config.run_dir.mkdir(parents=True, exist_ok=True)
    (config.run_dir / "config.yaml").write_text(config.text)
    with (config.run_dir / "command.txt").open("a") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {shlex.join(sys.argv)}\n")


def open_checkpoints(config: Config) -> CheckpointManager:
    """The run's checkpoints, with the settings of the section `checkpoint`."""
    return CheckpointManager(
        config.run_dir / "checkpoints",
        keep_best_n=config.checkpoint.keep_best_n,
        keep_last_n=config.checkpoint.keep_last_n,
        metric_name=config.checkpoint.metric_name or "",
        mode=config.checkpoint.mode,
        background=config.checkpoint.background,
        timeout_minutes=config.training.timeout_minutes,
    )


def open_logger(config: Config, state: State, resumed: bool) -> MetricsLogger:
    """The run's logs, with the settings of the section `logging`; resumed ones are continued."""
    values = OmegaConf.to_container(OmegaConf.create(config.text))
    assert isinstance(values, dict)
    return MetricsLogger(
        config.exp_name,
        config.run_dir,
        {str(key): value for key, value in values.items()},
        use_wandb=config.logging.use_wandb,
        use_tensorboard=config.logging.use_tensorboard,
        wandb_project=config.logging.wandb_project,
        wandb_tags=config.logging.wandb_tags,
        wandb_entity=config.logging.wandb_entity,
        wandb_mode=config.logging.wandb_mode,
        wandb_run_id=state.wandb_run_id,
        resume_step=state.step if resumed else None,
        trackers=[make_tracker(entry) for entry in config.logging.trackers],
    )


def make_tracker(entry: dict[str, Any]) -> TrackerMaker:
    """The class that an entry of `logging.trackers` names, with the arguments it gives."""
    arguments = {key: value for key, value in entry.items() if key != "_target_"}
    return partial(import_target("logging.trackers", entry["_target_"]), **arguments)


def has_to_resume(config: Config) -> bool:
    """Whether this run goes on from a checkpoint: the main process looks, all agree."""
    names = []
    if is_main_process():
        stored, broken = storage.scan(config.run_dir / "checkpoints")
        names = [one.path.name for one in stored] + [path.name for path in broken]
    names = broadcast_object(names)
    if config.checkpoint.resume == "never" and names:
        raise CheckpointError(
            f"checkpoint.resume=never, but the run {config.run_dir} already has {names[-1]}; "
            "choose another exp_name, remove that folder, or use checkpoint.resume=auto"
        )
    return config.checkpoint.resume != "never" and (
        bool(names) or config.checkpoint.resume != "auto"
    )


def state_of(trainer: Trainer) -> dict[str, Any]:
    """What, besides tensors, brings a trainer back to where it is."""
    totals = trainer.interval.totals()
    return {
        "step": trainer.state.step,
        "position": trainer.state.position._asdict(),
        "skipped": trainer.state.skipped,
        "skipped_in_a_row": trainer.state.skipped_in_a_row,
        "evaluated_step": trainer.state.evaluated_step,
        "interval": {"sums": totals.sums, "steps": totals.steps, "losses": totals.losses},
        "spikes": list(trainer.spikes.losses),
        "samples": trainer.loader.length,
        "global_batch_size": trainer.plan.global_batch_size,
        "world_size": trainer.world.world_size,
        "learning_rate": {
            "base": trainer.config.optimizer.lr,
            "rule": trainer.config.optimizer.lr_scaling,
            "used": trainer.learning_rate,
        },
        "wandb_run_id": trainer.logger.wandb_run_id or trainer.state.wandb_run_id,
    }


def has_ranking_score(trainer: Trainer) -> bool:
    """Whether the scores hold what ranks checkpoints; a name that is wrong costs no progress."""
    name, scores = trainer.config.checkpoint.metric_name, trainer.state.scores
    if name is not None and scores and name not in scores:
        logger.warning(
            "checkpoint.metric_name=%s is not among the scores (%s): no checkpoint is called best",
            name,
            ", ".join(scores),
        )
    return name is not None and name in scores


def restore_state(trainer: Trainer, saved: dict[str, Any]) -> None:
    """The inverse of `state_of`."""
    trainer.state.step = saved["step"]
    trainer.state.position = Position(**saved["position"])
    trainer.state.skipped = saved["skipped"]
    trainer.state.skipped_in_a_row = saved["skipped_in_a_row"]
    # Older checkpoints do not say: theirs were saved after the evaluation.
    trainer.state.evaluated_step = saved.get("evaluated_step", saved["step"])
    trainer.state.wandb_run_id = saved["wandb_run_id"]
    interval = saved["interval"]
    trainer.interval.restore(
        interval["sums"], interval["steps"], interval.get("losses", []), trainer.world
    )
    trainer.spikes.restore(saved.get("spikes", []))


def refuse_other_run(trainer: Trainer, saved: dict[str, Any]) -> None:
    """Stop where going on would silently be another run: other settings, data or batch."""
    config, state = trainer.config, saved["state"]
    accepted = (*FREE_TO_CHANGE, *config.checkpoint.accept_changes)
    changes = {
        key: f"{key}: {before} -> {after}"
        for key, before, after in differences(saved["config_yaml"], config.text, accepted)
    }
    for key, name, now in (
        ("data", "samples", trainer.loader.length),
        ("training.global_batch_size", "global_batch_size", trainer.plan.global_batch_size),
    ):
        if state[name] != now and key not in accepted[len(FREE_TO_CHANGE) :]:
            changes[key] = f"{key}: {name.replace('_', ' ')} {state[name]} -> {now}"
    if changes:
        raise ConfigError(
            f"{saved['path']} was made with other settings:\n  "
            + "\n  ".join(changes.values())
            + "\nChoose another exp_name for a new run, or go on all the same with\n  "
            f"'checkpoint.accept_changes=[{','.join(changes)}]'"
        )


def load_initial_weights(
    config: Config, model: nn.Module, unscored: tuple[str, ...] = ()
) -> str | None:
    """Weights of `checkpoint.init_from`, if it names any; what became of each of them."""
    source = config.checkpoint.init_from
    if source is None:
        return None
    report = load_initial(source, model, config.checkpoint.init_skip, unscored)
    if is_main_process() and Path(source).is_dir():
        # Another run's retention does not delete what this one starts from.
        storage.pin(Path(source), f"{config.run_dir} starts from it")
    return str(report)


def introduce(trainer: Trainer, resumed_from: Path | None, loaded: str | None) -> None:
    """Say at the start what will happen: the sums that users ask about."""
    config, plan, world = trainer.config, trainer.plan, trainer.world
    count = sum(parameter.numel() for parameter in trainer.model.parameters())
    trained = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "CPU"
    epochs = trainer.total_steps / trainer.loader.steps_per_epoch
    rule = config.optimizer.lr_scaling
    rates = learning_rates(config.optimizer, plan.global_batch_size)
    rows = [
        ("run", str(config.run_dir)),
        ("recipe", config.recipe.name),
        ("parameters", f"{count:,}" + ("" if trained == count else f", {trained:,} trained")),
        ("processes", f"{world.world_size} on {name}, {config.training.precision}"),
        (
            "data",
            f"{trainer.loader.length:,} samples, {trainer.loader.steps_per_epoch:,} steps an epoch",
        ),
        (
            "global batch",
            f"{plan.batch_size} per process x {world.world_size} process(es) x "
            f"{plan.accumulation_steps} accumulated = {plan.global_batch_size}",
        ),
        ("steps", f"{trainer.total_steps:,} ({epochs:.4g} epochs)"),
        (
            "learning rate",
            f"{config.optimizer.lr:g} by rule {rule}"
            + ("" if rule == "none" else f" from batch {config.optimizer.lr_base_batch}")
            + f" = {trainer.learning_rate:g}",
        ),
        *(
            [("by each rule", ", ".join(f"{name} {rate:g}" for name, rate in rates.items()))]
            if len(rates) > 1
            else []
        ),
        ("schedule", describe(trainer.schedule, trainer.total_steps)),
    ]
    if resumed_from is not None:
        position = trainer.state.position
        rows.append(
            (
                "resumed",
                f"{resumed_from} at step {trainer.state.step}: epoch {position.epoch}, sample "
                f"{position.offset}, nothing replayed",
            )
        )
    trainer.console.table("overt", rows)
    if loaded is not None:
        trainer.console.say(loaded)
    hint = advice(config.training, config.optimizer, plan)
    if hint is not None:
        trainer.console.say(f"advice: {hint}")
    if trainer.state.step >= trainer.total_steps:
        trainer.console.say("nothing is left to train: all steps have been made")


def note_skipped(trainer: Trainer, verdict: Verdict, module: str | None) -> str:
    """Write down the samples of a skipped step, on every process; the message about it."""
    own_loss = float(verdict.own_loss)
    folder = trainer.config.run_dir / "skipped"
    folder.mkdir(parents=True, exist_ok=True)
    row = {
        "step": verdict.step,
        "loss": repr(own_loss),
        "first_nonfinite_module": module,
        "samples": [
            {"epoch": identity.epoch, "index": identity.index}
            for micro in verdict.group.micro_batches
            for identity in micro.ids
        ],
    }
    path = folder / f"rank_{trainer.world.rank}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    spiked = bool(verdict.spiked)
    reason = (
        f"its loss is a spike, above {trainer.spikes.limit:.4g}"
        if spiked
        else "loss or gradient is NaN or Inf"
    )
    message = (
        f"step {verdict.step} was skipped: {reason} (this process's loss: "
        f"{own_loss:g}). Its samples are in {folder}."
    )
    if spiked:
        message += " training.loss_spike says what happens to spikes."
    elif module is not None:
        message += f" Where NaN or Inf first came up: {module}."
    elif trainer.config.training.name_nonfinite_module:
        message += " Run once more, everything was finite (a loss scale or dropout differed)."
    else:
        message += " training.name_nonfinite_module=true names the module that made it."
    trainer.logger.log_event("skipped_step", step=verdict.step, module=module, spike=spiked)
    trainer.console.say(message)
    return (
        f"{message} {trainer.state.skipped_in_a_row} step(s) in a row; the weights are those "
        "before it and have been saved. Try a lower learning rate, gradient clipping "
        "(training.grad_clip_norm) or training.precision=fp32."
    )


def note_start(trainer: Trainer) -> None:
    """After the first step: say what the time until then went into."""
    trainer.settle()  # the device is through with it as well
    trainer.phases.end("first step")
    trainer.phases.told = True
    trainer.logger.log_event("started", step=trainer.state.step, **trainer.phases.seconds)
    trainer.console.say(str(trainer.phases))


def note_spikes(trainer: Trainer, spikes: list[Spike]) -> None:
    """Write down steps whose loss stood out, and say the worst of them."""
    for spike in spikes:
        trainer.logger.log_event("loss_spike", **spike._asdict())
    if spikes:
        worst = max(spikes, key=lambda spike: spike.loss)
        trainer.console.say(
            f"the loss of {len(spikes)} step(s) since the last line stands out, most at step "
            f"{worst.step}: {worst.loss:.4g} where {worst.limit:.4g} was the limit "
            "(training.loss_spike; all are in events.jsonl)"
        )


def note_straggler(trainer: Trainer, paces: list[list[float]], seconds_per_step: float) -> None:
    """Say which process holds the others up, once."""
    if trainer.world.world_size == 1 or not math.isfinite(seconds_per_step):
        return
    slow = trainer.stragglers.notice(paces, seconds_per_step)
    if slow is None:
        return
    host = trainer.hosts[slow.rank]
    trainer.logger.log_event("straggler", step=trainer.state.step, host=host, **slow._asdict())
    trainer.console.say(
        f"rank {slow.rank} on {host} holds the others up: {slow.seconds:.3g} s a step {slow.part}, "
        f"the others {slow.usual:.3g} s"
    )


def note_preempted(trainer: Trainer, signal_name: str) -> str:
    """Write down that the run was asked to stop; the message says where it goes on."""
    step, total = trainer.state.step, trainer.total_steps
    trainer.logger.log_event("preempted", step=step, signal=signal_name)
    return (
        f"{signal_name} asked this run to stop: step {step} of {total} is saved in "
        f"{trainer.config.run_dir / 'checkpoints'}; the same command goes on from there"
    )


def note_lost_peer(trainer: Trainer, error: BaseException) -> str:
    """Write down that another process was lost; the message says what to do."""
    said = str(error).partition("\n")[0]
    step, minutes = trainer.state.step, trainer.config.training.timeout_minutes
    trainer.logger.log_event("lost_peer", step=step, error=said)
    return (
        f"rank {trainer.world.rank} at step {step}: another process, or the link to it, is gone "
        f"({said}). A process waits for the others for training.timeout_minutes={minutes:g} at "
        "most. What was saved is whole: look at what the other processes have printed, mend it, "
        "and the same command goes on from the last checkpoint."
    )


def score_line(step: int, scores: dict[str, float]) -> str:
    """One line of scores for the console."""
    return f"step {step}: " + ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
