"""Exponential moving average of one module's weights in another, without waiting for the device."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn


@torch.no_grad()
def update_ema(
    average: nn.Module, source: nn.Module, momentum: float, applied: Tensor | None = None
) -> None:
    """average <- momentum x average + (1 - momentum) x source, over all parameters.

    `applied` (0 or 1, a scalar on the device) leaves the average as it is where the optimizer's
    update was skipped. Buffers are copied: norm statistics and counters are no averages.
    """
    targets = [parameter.detach() for parameter in average.parameters()]
    sources = [parameter.detach().to(torch.float32) for parameter in source.parameters()]
    assert len(targets) == len(sources), "average and source are different modules"
    if targets:
        steps = list(torch._foreach_sub(sources, targets))
        weight = 1.0 - momentum if applied is None else (1.0 - momentum) * applied
        torch._foreach_mul_(steps, weight)
        torch._foreach_add_(targets, steps)
    for target, value in zip(average.buffers(), source.buffers(), strict=True):
        target.copy_(value)


def make_average(source: nn.Module) -> nn.Module:
    """A frozen float32 copy of `source`, in evaluation mode, to be moved by `update_ema`."""
    average = deepcopy(source).float()
    return average.requires_grad_(False).eval()
