"""Helpers around DistributedDataParallel, and its mean over ranks for passes without it.

The line that wraps the model is in build.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed
from torch import nn

from overt.checkpoint import random_state


def settle_buckets(add_gradients: Callable[..., object], parameters: list[nn.Parameter]) -> None:
    """Let DDP rebuild its buckets, as after a first backward pass, before a state is loaded.

    They decide the order of sums over three or more ranks (over two it is the same either way), and
    the interrupted run was past that. The passes are thrown away: `Recipe.loss` is pure.
    """
    with random_state.undisturbed():
        add_gradients(only="")  # the prefix of all names: a pass without DDP's reduction
        # Where the loss leaves parameters without a gradient, as that of one network of a GAN does,
        # training names `only` too: DDP has no part in it, and would wait for the others.
        uses_all = all(parameter.grad is not None for parameter in parameters)
        _drop_gradients(parameters)
        if uses_all:
            add_gradients()
            _drop_gradients(parameters)


def _drop_gradients(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def average_over_ranks(parameters: list[nn.Parameter]) -> None:
    """Average the gradients of all ranks, in one message, as DDP does.

    A mean, so that gradients which were averaged before and then added to stay right. A parameter
    without a gradient counts as zero; without one on any rank it keeps none.
    """
    gradients = [parameter.grad for parameter in parameters]
    filled = [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]
    flags = filled[0].new_tensor([float(gradient is not None) for gradient in gradients])
    packed = torch.cat([*(gradient.flatten() for gradient in filled), flags])
    torch.distributed.all_reduce(packed)
    packed /= torch.distributed.get_world_size()
    *means, flags = torch.split(packed, [*(gradient.numel() for gradient in filled), len(flags)])
    torch._foreach_copy_(
        filled, [mean.view_as(tensor) for mean, tensor in zip(means, filled, strict=True)]
    )
    for index, gradient in enumerate(gradients):
        if gradient is None and flags[index] > 0:  # the host waits, in this rare case only
            parameters[index].grad = filled[index]
