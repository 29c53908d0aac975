"""A step's loss computed again, on the bare model: to find NaN in it, or to count its FLOPs.

Neither gradients, buffers nor random generators are changed by it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from overt.checkpoint import random_state
from overt.distributed import gather_objects
from overt.engine.guard import Verdict
from overt.engine.loader import StepBatch
from overt.health.flops import count_flops
from overt.health.nonfinite import first_nonfinite_module
from overt.recipe import Recipe
from overt.run.events import SkippedStep


@dataclass(frozen=True)
class Replay:
    recipe: Recipe
    bare: Callable[[], AbstractContextManager[nn.Module]]  # gathers a sharded model
    to_device: Callable[[Any], Any]
    autocast: Callable[[], AbstractContextManager[Any]]

    def loss(self, model: nn.Module, verdict: Verdict) -> Tensor:
        """Return this rank's loss of the step again."""
        losses = []
        for micro in verdict.batch.micro_batches:
            losses.append(self._micro_loss(model, micro.batch, verdict.counts, verdict.step))
        return torch.stack(losses).sum()

    def loss_of(
        self, batch: StepBatch, counts: dict[str, Tensor], step: int, model: nn.Module
    ) -> Tensor:
        """Return the loss of a step's first micro-batch."""
        return self._micro_loss(model, batch.micro_batches[0].batch, counts, step)

    def _micro_loss(
        self, model: nn.Module, batch: Any, counts: dict[str, Tensor], step: int
    ) -> Tensor:
        batch = self.to_device(batch)
        with self.autocast():
            return self.recipe.loss(model, batch, counts, step).total

    def explain(self, verdict: Verdict, searches: bool, spike_limit: float) -> SkippedStep:
        """Describe a skipped step. Every rank must call this."""
        searches = searches and not bool(verdict.spiked)
        module = self.nonfinite_module(verdict) if searches else None
        return verdict.event(module, searches, spike_limit)

    def nonfinite_module(self, verdict: Verdict) -> str | None:
        """Return the first module that produced NaN or Inf. Every rank must call this."""
        with random_state.undisturbed(), self.bare() as model:
            module_name = first_nonfinite_module(model, partial(self.loss, model, verdict))
        # It may have been on another rank; every rank skips, so every one takes part.
        return next(filter(None, gather_objects(module_name)), None)

    def flops(self, verdict: Verdict) -> int:
        """Return the floating-point operations of the step on this rank."""
        with random_state.undisturbed(), self.bare() as model:
            return count_flops(model, partial(self.loss, verdict=verdict))
