"""Texts of a run that are longer than a line: how it starts, and what to do where it ends early."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from overt.config import Config
from overt.config.batch import BatchPlan, advice, learning_rates
from overt.run.events import LostPeer, NonFiniteWeights, SkippedStep, StopRequested


@dataclass(frozen=True)
class Introduction:
    """The introduction of a run: the sums that users ask about."""

    config: Config
    plan: BatchPlan
    device_name: str
    parameters: int
    trained_parameters: int
    samples: int
    steps_per_epoch: int
    total_steps: int
    optimizers: dict[str, int]  # parameters of each class
    learning_rate: float
    schedule: str
    loaded: str | None  # what became of the weights of checkpoint.init_from
    resumed: str | None
    done: str | None  # why nothing is left to train

    def rows(self) -> list[tuple[str, str]]:
        config, plan, optimizer = self.config, self.plan, self.config.optimizer
        trained = self.trained_parameters
        rule = optimizer.lr_scaling
        base = "" if rule == "none" else f" from batch {optimizer.lr_base_batch}"
        rates = learning_rates(optimizer, plan.global_batch_size)
        rows = [
            ("run", str(config.run_dir)),
            ("recipe", config.recipe.name),
            (
                "parameters",
                f"{self.parameters:,}"
                + ("" if trained == self.parameters else f", {trained:,} trained"),
            ),
            (
                "processes",
                f"{plan.world_size} on {self.device_name}, {config.training.precision}",
            ),
            ("data", f"{self.samples:,} samples, {self.steps_per_epoch:,} steps an epoch"),
            (
                "global batch",
                f"{plan.batch_size} per process x {plan.world_size} process(es) x "
                f"{plan.accumulation_steps} accumulated = {plan.global_batch_size}",
            ),
            (
                "steps",
                f"{self.total_steps:,} ({self.total_steps / self.steps_per_epoch:.4g} epochs)",
            ),
            ("learning rate", f"{optimizer.lr:g} by rule {rule}{base} = {self.learning_rate:g}"),
        ]
        if len(rates) > 1:
            by_rule = ", ".join(f"{name} {rate:g}" for name, rate in rates.items())
            rows.append(("by each rule", by_rule))
        if len(self.optimizers) > 1:
            parts = [f"{name} for {count:,}" for name, count in self.optimizers.items()]
            rows.append(("optimizers", ", ".join(parts) + " parameters"))
        rows.append(("schedule", self.schedule))
        if self.resumed is not None:
            rows.append(("resumed", self.resumed))
        return rows

    def remarks(self) -> list[str]:
        """Return the lines below the table."""
        hint = advice(self.config.training, self.config.optimizer, self.plan)
        return [
            *([] if self.loaded is None else [self.loaded]),
            *([] if hint is None else [f"advice: {hint}"]),
            *([] if self.done is None else [f"nothing is left to train: {self.done}"]),
        ]


def stopped_by_nonfinite(event: SkippedStep, in_a_row: int) -> str:
    return (
        f"{event} {in_a_row} step(s) in a row; the weights are those before it and have been "
        "saved. Try a lower learning rate, gradient clipping (training.grad_clip_norm) or "
        "training.precision=fp32."
    )


def nonfinite_weights(event: NonFiniteWeights, newest: Path | None) -> str:
    names = ", ".join(event.tensors[:5]) + (" ..." if len(event.tensors) > 5 else "")
    kept = (
        "no checkpoint exists yet" if newest is None else f"the newest good checkpoint is {newest}"
    )
    return (
        f"at step {event.step} the weights hold NaN or Inf, or numbers beyond 1e18 that lead there "
        f"({len(event.tensors)} tensor(s): {names}), so they are not saved; {kept}. The gradients "
        "were finite: the update was not. Lower optimizer.lr, raise optimizer.arguments.eps, or "
        "clip the gradient (training.grad_clip_norm), and resume from there."
    )


def stopped_by_signal(event: StopRequested, checkpoints: Path) -> str:
    return (
        f"{event.signal} asked this run to stop: step {event.step} of {event.total_steps} is saved "
        f"in {checkpoints}; the same command resumes from there"
    )


def lost_peer(event: LostPeer, rank: int, timeout_minutes: float) -> str:
    return (
        f"rank {rank} at step {event.step}: another process, or the link to it, is gone "
        f"({event.error}). A rank waits for the others for training.timeout_minutes="
        f"{timeout_minutes:g} at most. What was saved is complete: look at what the other "
        "processes printed, fix it, and the same command resumes from the last checkpoint."
    )


def score_line(step: int, scores: dict[str, float]) -> str:
    """Return one line of scores for the console."""
    return f"step {step}: " + ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
