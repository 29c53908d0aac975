"""What DistributedDataParallel needs around it; the line that wraps the model is in build.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from overt.checkpoint import random_state
from overt.engine.loader import MicroBatch, StepBatch


def settle_buckets(
    batch: StepBatch,
    counts: dict[str, Tensor],
    add_gradients: Callable[[list[MicroBatch], dict[str, Tensor]], object],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Let DDP rebuild its buckets, as after a first backward pass, before a state is loaded.

    They decide the order of sums over three or more ranks (over two it is the same either way), and
    the interrupted run was past that. The pass is thrown away: `Recipe.loss` is pure.
    """
    with random_state.undisturbed():
        add_gradients(batch.micro_batches, counts)
    optimizer.zero_grad(set_to_none=True)
