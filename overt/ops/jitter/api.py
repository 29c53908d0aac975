"""Brightness, contrast, saturation and hue of frames: two kernels for all frames, or one by one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from overt.ops.dispatch import use_kernels
from overt.ops.jitter.operators import OPERATORS, Jitter
from overt.ops.jitter.plain import jitter_plain


def jitter(frames: Tensor, jitters: Sequence[Jitter]) -> Tensor:
    """Change brightness, contrast, saturation and hue of the frames (n, 3, H, W) uint8."""
    if not use_kernels("jitter", frames):
        return jitter_plain(frames, jitters)
    from overt.ops.jitter.kernels import jitter_fused

    operators = [[OPERATORS.index(name) for name in item.order] for item in jitters]
    amounts = [[getattr(item, name) for name in item.order] for item in jitters]
    return jitter_fused(frames, _send(operators, frames), _send(amounts, frames))


def jitter_rows(frames: Tensor, operators: Tensor, amounts: Tensor) -> Tensor:
    """Change frames (n, 3, H, W) uint8 by `amounts` (n, 4) of the `operators` (n, 4), numbered.

    The same as `jitter` for numbers that are on the device already.
    """
    if use_kernels("jitter", frames):
        from overt.ops.jitter.kernels import jitter_fused

        return jitter_fused(frames, operators, amounts)
    pairs = zip(operators.tolist(), amounts.tolist(), strict=True)
    jitters = []
    for numbers, values in pairs:
        order = tuple(OPERATORS[number] for number in numbers)
        jitters.append(Jitter(order=order, **dict(zip(order, values, strict=True))))
    return jitter_plain(frames, jitters)


def _send(numbers: list[list[int]] | list[list[float]], to: Tensor) -> Tensor:
    """A few numbers on the device of a tensor, which the host does not wait for."""
    return torch.tensor(numbers).to(to.device, non_blocking=True)
