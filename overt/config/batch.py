"""Batch arithmetic: one global batch, split over processes and accumulated micro-batches.

Pure numbers, without torch: a batch that does not divide is refused before anything starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from overt.config.schema import OptimizerSection, TrainingSection
from overt.errors import ConfigError
from overt.recipe import Recipe


@dataclass(frozen=True)
class BatchPlan:
    batch_size: int  # samples per process and micro-batch
    accumulation_steps: int
    world_size: int

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.accumulation_steps * self.world_size

    def steps_per_epoch(self, samples: int, drop_last: bool) -> int:
        full_batches = samples // self.global_batch_size
        steps = full_batches if drop_last else -(-samples // self.global_batch_size)
        if steps == 0:
            raise ConfigError(
                f"the data set has {samples} samples, fewer than one global batch of "
                f"{self.global_batch_size}; use a smaller batch, more data, or "
                "training.drop_last=false"
            )
        return steps


def plan_batches(training: TrainingSection, world_size: int) -> BatchPlan:
    """Derive the values that the configuration leaves null; refuse a batch that does not divide."""
    size, total = training.batch_size, training.global_batch_size
    accumulation = training.accumulation_steps
    if total is None:
        assert size is not None  # the schema asks for one of the two
        return BatchPlan(size, accumulation or 1, world_size)
    if size is None:
        size = _divide(total, world_size * (accumulation or 1), "accumulation_steps", accumulation)
    elif accumulation is None:
        accumulation = _divide(total, world_size * size, "batch_size", size)
    plan = BatchPlan(size, accumulation or 1, world_size)
    if plan.global_batch_size != total:
        raise ConfigError(
            f"training.global_batch_size={total} is not {world_size} process(es) x batch_size "
            f"{size} x accumulation_steps {plan.accumulation_steps} = {plan.global_batch_size}; "
            "set one of the three to null and it follows from the others"
        )
    return plan


def check_stackable(recipe: Recipe, plan: BatchPlan) -> None:
    """Refuse micro-batches of several samples where the recipe cannot stack them."""
    stackable = recipe.stackable
    if isinstance(stackable, str) and plan.batch_size > 1:
        raise ConfigError(
            f"{plan.batch_size} samples in a micro-batch, but {stackable}, or set "
            f"training.batch_size=1, which reaches the global batch of {plan.global_batch_size} by "
            f"accumulation (training.global_batch_size={plan.global_batch_size})"
        )


def _divide(total: int, unit: int, name: str, value: int | None) -> int:
    if total % unit:
        below, above = total // unit * unit, (total // unit + 1) * unit
        nearest = f"{below} or {above}" if below else str(above)
        part = f" x {name} {value}" if value else ""
        raise ConfigError(
            f"training.global_batch_size={total} is not a multiple of the number of processes"
            f"{part} = {unit}; use {nearest}, or change training.{name}"
        )
    return total // unit


def learning_rates(optimizer: OptimizerSection, global_batch_size: int) -> dict[str, float]:
    """The learning rate for this global batch by each rule; without a base batch only `none`."""
    if optimizer.lr_base_batch is None:
        return {"none": optimizer.lr}
    ratio = global_batch_size / optimizer.lr_base_batch
    return {
        "none": optimizer.lr,
        "linear": optimizer.lr * ratio,
        "sqrt": optimizer.lr * math.sqrt(ratio),
    }


def scaled_learning_rate(optimizer: OptimizerSection, global_batch_size: int) -> float:
    """Return the learning rate for this global batch by the rule of `optimizer.lr_scaling`."""
    # The schema asks for a base batch where the rule needs one.
    return learning_rates(optimizer, global_batch_size)[optimizer.lr_scaling]


def advice(training: TrainingSection, optimizer: OptimizerSection, plan: BatchPlan) -> str | None:
    """Return advice on a global batch that leaves few samples for each rank."""
    if training.global_batch_size is None or plan.world_size == 1 or plan.batch_size >= 8:
        return None
    larger = 8 * plan.world_size * plan.accumulation_steps
    strength = "idles most of the device" if plan.batch_size == 1 else "may not fill the device"
    rule = (
        "optimizer.lr_scaling=linear or sqrt scales the learning rate with it"
        if optimizer.lr_scaling == "none"
        else f"optimizer.lr_scaling={optimizer.lr_scaling} scales the learning rate with it"
    )
    return (
        f"{plan.batch_size} sample(s) per process and micro-batch {strength}; "
        f"training.global_batch_size={larger} gives 8, and {rule}"
    )
