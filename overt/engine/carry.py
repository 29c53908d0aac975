"""Tensors that `loss` hands to `after_step`, of this rank or of the whole global batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from overt.config.batch import BatchPlan
from overt.engine.loader import StepBatch
from overt.engine.order import micro_batches
from overt.errors import ConfigError
from overt.recipe import StepOutput


def carried(
    outputs: Sequence[StepOutput], batch: StepBatch, plan: BatchPlan, gathers: bool
) -> dict[str, Tensor]:
    """Return every tensor of `StepOutput.carry`, detached, concatenated over the samples.

    With `gathers` those of all ranks, in the order of the global batch; every rank must call this.
    """
    names = list(outputs[0].carry)
    gathers = gathers and plan.world_size > 1
    together: dict[str, Tensor] = {}
    for name in names:
        values: list[Any] = [output.carry[name] for output in outputs]
        for value in values:
            if not isinstance(value, Tensor) or (value.ndim == 0 and not gathers):
                raise ConfigError(
                    f"StepOutput.carry[{name!r}] is {value!r}; expected a tensor (samples, ...)"
                )
        parts = [value.detach() for value in values]
        if gathers:
            together[name] = _gather(name, parts, batch.samples, plan)
        else:
            real = [
                part
                for part, micro in zip(parts, batch.micro_batches, strict=True)
                if not micro.is_padding
            ]
            together[name] = torch.cat(real) if real else parts[0][:0]
    return together


def _gather(name: str, parts: list[Tensor], samples: int, plan: BatchPlan) -> Tensor:
    """Micro-batch m of rank r is slice m x W + r of the global batch, so its size is known."""
    size, rows = plan.batch_size, []
    for part in parts:
        if part.ndim == 0 or part.shape[0] > size:
            raise ConfigError(
                f"StepOutput.carry[{name!r}] has the shape {tuple(part.shape)}; with gathers_carry "
                f"expected (samples, ...), up to {size} samples in a micro-batch"
            )
        padded = part.new_zeros(size, *part.shape[1:])
        padded[: part.shape[0]] = part
        rows.append(padded)
    local = torch.stack(rows)  # (M, size, ...)
    # Gloo takes ranks one below the other only, not in a new dimension.
    all_ranks = local.new_empty(plan.world_size * len(local), *local.shape[1:])
    torch.distributed.all_gather_into_tensor(all_ranks, local)
    by_rank = all_ranks.view(plan.world_size, *local.shape)  # (W, M, size, ...)
    ordered = by_rank.transpose(0, 1).flatten(0, 2)  # (M x W x size, ...)
    count = micro_batches(samples, plan) * plan.world_size
    kept = [
        ordered[index * size : index * size + min(size, max(samples - index * size, 0))]
        for index in range(count)
    ]
    return torch.cat(kept)
