"""Batch norm over the micro-batches of all ranks, on any device.

With one process it is torch's own. Statistics are those of one micro-batch per rank: with gradient
accumulation they differ from those of one large batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from overt.distributed import all_reduce_sum, get_world_size


class _Sum(torch.autograd.Function):
    """Sum over all ranks; the gradient is summed over all ranks as well."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return all_reduce_sum(tensor.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return all_reduce_sum(gradients[0].clone())


class SharedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm with mean and variance over the samples of all ranks."""

    def forward(self, maps: Tensor) -> Tensor:  # (B, C, H, W)
        if not self.training or get_world_size() == 1:
            return super().forward(maps)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        numbers = maps.float()
        local = torch.cat([numbers.sum((0, 2, 3)), numbers.new_full((1,), numbers[:, 0].numel())])
        both: Tensor = _Sum.apply(local)  # type: ignore[no-untyped-call]
        count = both[-1].detach()
        mean = both[:-1] / count
        centred = numbers - mean[:, None, None]
        squares: Tensor = _Sum.apply(centred.square().sum((0, 2, 3)))  # type: ignore[no-untyped-call]
        variance = squares / count
        with torch.no_grad():
            self.running_mean.lerp_(mean.detach(), self.momentum)
            self.running_var.lerp_(squares.detach() / (count - 1), self.momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
        scale = self.weight * (variance + self.eps).rsqrt()
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(maps.dtype)


class FrozenBatchNorm2d(nn.BatchNorm2d):
    """Batch norm with fixed scale and shift, for weights that include their statistics."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> FrozenBatchNorm2d:
        super().train(False)
        return self
