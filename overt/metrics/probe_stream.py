"""An attentive probe on tokens that are computed as they are needed, and never kept.

All tokens of ImageNet take hundreds of gigabytes; a batch of them takes little. The encoder runs
once for every image and epoch, on all ranks, each with its part of every batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from overt.distributed import World, all_reduce_sum
from overt.metrics.probes import ATTENTIVE, AttentiveProbe, ProbeSettings, rank_of_truth

# Tokens (n, N, D) and labels (n,) of every one of these batches of sample numbers, in order.
Tokens = Callable[[Sequence[NDArray[np.int64]]], Iterator[tuple[Tensor, Tensor]]]


def stream_attentive_accuracy(
    train: Tokens,
    train_count: int,
    test: Tokens,
    test_count: int,
    *,
    width: int,
    classes: int,
    heads: int,
    world: World,
    settings: ProbeSettings = ATTENTIVE,
) -> dict[str, float]:
    """Return `top1` and `top5` (0 to 1) of an attentive probe; all ranks call it and get the same.

    Batches, order and weights at the start are those of `attentive_probe_accuracy`. Samples that
    `train` and `test` leave out, since they cannot be read, count nowhere.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(world.device.type, enabled=False),
    ):
        generator = torch.Generator().manual_seed(settings.seed)
        probe = AttentiveProbe(width, classes, heads, generator).to(world.device)
        parameters = list(probe.parameters())
        optimizer = torch.optim.AdamW(parameters, settings.lr, weight_decay=settings.weight_decay)
        steps = settings.epochs * math.ceil(train_count / settings.batch_size)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(settings.epochs):
            order = torch.randperm(train_count, generator=generator)
            batches = torch.split(order, settings.batch_size)
            parts = [batch[world.rank :: world.world_size].numpy() for batch in batches]
            for batch, (tokens, labels) in zip(batches, train(parts), strict=True):
                optimizer.zero_grad()
                if len(labels):
                    logits = probe(tokens.to(world.device).float().clone())
                    loss = F.cross_entropy(logits, labels.to(world.device), reduction="sum")
                    (loss / len(batch)).backward()  # type: ignore[no-untyped-call]
                _add_up(parameters, world)
                optimizer.step()
                schedule.step()
        # top 1, top 5, counted, with non-finite logits
        right = torch.zeros(4, dtype=torch.int64, device=world.device)
        batches = torch.split(torch.arange(test_count), settings.batch_size)
        parts = [batch.numpy() for batch in batches[world.rank :: world.world_size]]
        with torch.no_grad():
            for tokens, labels in test(parts):
                if len(labels):
                    logits = probe(tokens.to(world.device).float())
                    ranks = rank_of_truth(logits, labels.to(world.device))
                    non_finite = (~logits.isfinite()).any(dim=1)
                    counts = [ranks < 1, ranks < 5, ranks >= 0, non_finite]
                    right += torch.stack(counts).sum(dim=1)
    top1, top5, counted, non_finite_count = all_reduce_sum(right).tolist()
    if non_finite_count:
        return {"top1": math.nan, "top5": math.nan}
    return {"top1": top1 / max(counted, 1), "top5": top5 / max(counted, 1)}


def _add_up(parameters: Sequence[Tensor], world: World) -> None:
    """Give every rank the gradients of the whole batch; a rank without samples adds nothing."""
    if world.world_size == 1:
        return
    for parameter in parameters:
        local = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = all_reduce_sum(local)
