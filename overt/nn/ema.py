"""Exponential moving average of one module's weights in another, without waiting for the device."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

LARGE = 2**20  # numbers


@torch.no_grad()
def update_ema(
    average: nn.Module, source: nn.Module, momentum: float, applied: Tensor | None = None
) -> None:
    """average <- momentum x average + (1 - momentum) x source, over all parameters.

    `applied` (0 or 1, a scalar on the device) leaves the average as it is where the optimizer's
    update was skipped. Buffers are copied: norm statistics and counters are not averaged. Of
    sharded parameters each process moves its own share.
    """
    targets = [_average_weight(parameter) for parameter in average.parameters()]
    sources = [_average_weight(parameter).to(torch.float32) for parameter in source.parameters()]
    weight = 1.0 - momentum if applied is None else (1.0 - momentum) * applied
    pairs = list(zip(targets, sources, strict=True))
    # A large tensor is read and written once; many small ones share a launch.
    for target, value in pairs:
        if target.numel() >= LARGE:
            target.lerp_(value, weight)
    small = [pair for pair in pairs if pair[0].numel() < LARGE]
    if small:
        targets, sources = (list(side) for side in zip(*small, strict=True))
        steps = list(torch._foreach_sub(sources, targets))
        torch._foreach_mul_(steps, weight)
        torch._foreach_add_(targets, steps)
    for target, value in zip(average.buffers(), source.buffers(), strict=True):
        target.copy_(value)


def _average_weight(parameter: Tensor) -> Tensor:
    parameter = parameter.detach()
    # A DTensor, known by what it can do: its module takes long to import.
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def make_average(source: nn.Module) -> nn.Module:
    """A frozen float32 copy of `source`, in evaluation mode, to be moved by `update_ema`."""
    average = deepcopy(source).float()
    return average.requires_grad_(False).eval()
