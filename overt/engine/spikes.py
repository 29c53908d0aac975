"""Losses far above those of the steps before: found by a robust threshold, reported or skipped.

The threshold follows from a window of global losses, which the log line reads anyway, so it is the
same on every rank and a step need not compute it.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from overt.checkpoint.plain_values import is_number
from overt.config.schema import TrainingSection
from overt.distributed import all_reduce_sum
from overt.errors import CheckpointError, ConfigError
from overt.recipe import StepOutput
from overt.run.events import LossSpike

# Of normally distributed numbers the standard deviation is this multiple of the median deviation.
NORMAL = 1.4826
LEAST_FRACTION = 0.25  # of the window has to be known before anything is called a spike
LEAST_SPREAD = 1e-3  # of the median: a constant loss has no spread


class SpikeWatch:
    """The window of losses, the limit above which a loss is a spike, and whether to skip those."""

    def __init__(self, training: TrainingSection, device: torch.device) -> None:
        self.mode = training.loss_spike
        self.deviations = training.loss_spike_deviations
        self.losses: deque[float] = deque(maxlen=training.loss_spike_window)
        self.limit = math.inf
        self._limit_there = torch.full((), math.inf, device=device)
        self._loss: Tensor | None = None

    def see(self, outputs: Sequence[StepOutput], only: object = None) -> None:
        """With skip: add up the loss of this step over all ranks, without waiting for it."""
        if self.mode != "skip":
            return
        if only is not None:
            raise ConfigError(
                f"training.loss_spike=skip with add_gradients(only={only!r}): one window of losses "
                "cannot judge several losses of a step; use training.loss_spike=report or ignore"
            )
        local_loss = outputs[0].total.detach().to(torch.float32)
        for output in outputs[1:]:
            local_loss = local_loss + output.total.detach()
        self._loss = all_reduce_sum(local_loss.clone())

    def allows(self) -> Tensor | None:
        """With skip: true where the loss just seen is not a spike, a scalar on the device."""
        loss, self._loss = self._loss, None
        return None if loss is None else loss <= self._limit_there

    def add(self, losses: Sequence[float], last_step: int) -> list[LossSpike]:
        """Take the losses of the steps up to `last_step`, NaN for skipped ones; the spikes."""
        if self.mode == "ignore":
            return []
        first = last_step - len(losses) + 1
        spikes = [
            LossSpike(first + index, loss, self.limit)
            for index, loss in enumerate(losses)
            if loss > self.limit  # never true of NaN
        ]
        self._fill([*self.losses, *(loss for loss in losses if math.isfinite(loss))])
        return spikes

    def state_dict(self) -> list[float]:
        """Return the window of losses."""
        return list(self.losses)

    def load_state_dict(self, losses: Sequence[float]) -> None:
        """Continue with this window, and with the limit that follows from it."""
        if not all(map(is_number, losses)):
            raise CheckpointError("state.json: spikes holds a value that is not a number")
        self._fill(losses)

    def _fill(self, losses: Sequence[float]) -> None:
        self.losses = deque(losses, self.losses.maxlen)
        self.limit = math.inf
        if self.mode != "ignore" and len(self.losses) >= LEAST_FRACTION * (self.losses.maxlen or 0):
            self.limit = robust_limit(self.losses, self.deviations)
        self._limit_there.fill_(self.limit)


def robust_limit(losses: Sequence[float] | deque[float], deviations: float) -> float:
    """The median plus a number of deviations, where the deviation is a robust one too."""
    middle = statistics.median(losses)
    spread = NORMAL * statistics.median(abs(loss - middle) for loss in losses)
    return middle + deviations * max(spread, LEAST_SPREAD * abs(middle))
