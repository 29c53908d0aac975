"""The Triton programs that normalize points, as operators that autograd and compile can see."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from overt.ops.point_norm import programs
from overt.ops.point_norm.plain import EPS

TILE = 2048  # numbers of a block: rows times channels
PROGRAMS = 1024  # enough to fill a large device
SUMS_TILE = 4096  # numbers that are added at a time where the sums of programs meet


class _Shape:
    """How rows are split over programs; a cloud's `length` counts its padding too."""

    def __init__(self, rows: Tensor, batch: int, length: int, starts: Tensor | None) -> None:
        self.channels = rows.shape[1]
        self.width = triton.next_power_of_2(self.channels)
        self.height = max(TILE // self.width, 1)
        self.length = length
        self.pairs = starts is not None
        self.centers = 0 if starts is None else (starts.shape[0] - 1) // batch
        mean_rows = triton.cdiv(rows.shape[0], batch)
        parts = min(triton.cdiv(mean_rows, self.height), triton.cdiv(PROGRAMS, batch))
        self.grid = (batch, max(parts, 1))

    def options(self) -> dict[str, int | bool]:
        return {"PAIRS": self.pairs, "ROWS": self.height, "WIDTH": self.width}

    def options_of_sums(self, groups: int) -> dict[str, int]:
        """Of the programs that add up what all programs of a cloud have summed."""
        at_once = min(triton.next_power_of_2(self.grid[1]), max(SUMS_TILE // self.width, 1))
        lanes = triton.next_power_of_2(groups)
        return {
            "GROUPS": groups, "LANES": lanes, "AT_ONCE": at_once, "WIDTH": self.width,
            "num_warps": 8,
        }  # fmt: skip


def _normalize(
    rows: Tensor,
    groups: int,
    shape: _Shape,
    weights: Tensor,
    starts: Tensor,
    constant: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean less the constant, one over the deviation, and normalized means: (B, C) float32."""
    (batch, parts), channels = shape.grid, shape.channels
    sums = torch.empty((batch, parts, 2, channels), dtype=torch.float32, device=rows.device)
    mean = torch.empty((batch, channels), dtype=torch.float32, device=rows.device)
    factor, drift = torch.empty_like(mean), torch.empty_like(mean)
    sizes = (shape.length, shape.centers, channels)
    programs.moments[shape.grid](rows, weights, starts, sums, *sizes, **shape.options())
    programs.statistics[(batch,)](
        rows, starts, sums, _or(constant, mean), mean, factor, drift, *sizes, parts,
        0 if constant is None else constant.stride(0),
        EPSILON=EPS, PAIRS=shape.pairs, CONSTANT=constant is not None,
        **shape.options_of_sums(groups),
    )  # fmt: skip
    return mean, factor, drift


@torch.library.custom_op("overt::norm_swish", mutates_args=())
def norm_swish_fused(
    rows: Tensor,
    scale: Tensor,
    shift: Tensor,
    groups: int,
    batch: int,
    length: int,
    weights: Tensor | None,
    owners: Tensor | None,
    starts: Tensor | None,
    swish: bool = True,
    constant: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `norm_swish`, `norm_grid` and `norm_swish_pairs`; three statistics besides."""
    rows = rows.contiguous()
    shape = _Shape(rows, batch, length, starts)
    weights, first = _or(weights, rows), _or(starts, rows)
    mean, factor, drift = _normalize(rows, groups, shape, weights, first, constant)
    # Rows of unused pairs belong to no neighbor, but a matrix product reads them.
    result = torch.zeros_like(rows) if shape.pairs else torch.empty_like(rows)
    programs.values[shape.grid](
        rows, first, mean, factor, scale, shift, result,
        length, shape.centers, shape.channels, SWISH=swish, **shape.options(),
    )  # fmt: skip
    return result, mean, factor, drift


@norm_swish_fused.register_fake
def _(
    rows, scale, shift, groups, batch, length, weights, owners, starts, swish=True, constant=None
):
    return torch.empty_like(rows), *_empty_statistics(rows, batch)


def _empty_statistics(rows, batch):
    shape = (batch, rows.shape[1])
    return tuple(rows.new_empty(shape, dtype=torch.float32) for _ in range(3))


@torch.library.custom_op("overt::norm_swish_max", mutates_args=())
def norm_swish_max_fused(
    rows: Tensor,
    scale: Tensor,
    shift: Tensor,
    groups: int,
    batch: int,
    length: int,
    weights: Tensor,
    owners: Tensor,
    starts: Tensor,
    constant: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See `norm_swish_max`; which pair was chosen and three statistics besides."""
    rows = rows.contiguous()
    shape = _Shape(rows, batch, length, starts)
    mean, factor, drift = _normalize(rows, groups, shape, weights, starts, constant)
    count = starts.shape[0] - 1
    result = rows.new_empty((count, shape.channels))
    chosen = torch.empty((count, shape.channels), dtype=torch.int32, device=rows.device)
    programs.largest[(count,)](
        rows, starts, mean, factor, scale, shift, result, chosen,
        shape.centers, shape.channels, WIDTH=shape.width, num_warps=1 if shape.width <= 128 else 4,
    )  # fmt: skip
    return result, chosen, mean, factor, drift


@norm_swish_max_fused.register_fake
def _(rows, scale, shift, groups, batch, length, weights, owners, starts, constant=None):
    result = rows.new_empty((starts.shape[0] - 1, rows.shape[1]))
    chosen = torch.empty_like(result, dtype=torch.int32)
    return result, chosen, *_empty_statistics(rows, batch)


@torch.library.custom_op("overt::norm_swish_backward", mutates_args=())
def _norm_swish_backward(
    gradient: Tensor,
    rows: Tensor,
    scale: Tensor,
    shift: Tensor,
    mean: Tensor,
    factor: Tensor,
    drift: Tensor,
    groups: int,
    length: int,
    chosen: Tensor | None,
    weights: Tensor | None,
    owners: Tensor | None,
    starts: Tensor | None,
    swish: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, gradient = rows.contiguous(), gradient.contiguous()
    batch, channels = mean.shape
    shape = _Shape(rows, batch, length, starts)
    parts = shape.grid[1]
    sums = torch.empty((batch, parts, 2, channels), dtype=torch.float32, device=rows.device)
    totals = torch.empty((batch, 2, channels), dtype=torch.float32, device=rows.device)
    levels, constant_gradient = torch.empty_like(totals), torch.empty_like(mean)
    result = torch.zeros_like(rows) if shape.pairs else torch.empty_like(rows)
    indices = (_or(chosen, rows), _or(owners, rows))
    statistics = (mean, factor, scale, shift)
    sizes = (length, shape.centers, channels)
    options = shape.options() | {"MAX": chosen is not None, "SWISH": swish}
    programs.gradient_sums[shape.grid](
        rows, gradient, *indices, _or(starts, rows), *statistics, sums, *sizes, **options
    )
    programs.gradient_statistics[(batch,)](
        sums, scale, factor, drift, totals, levels, constant_gradient, length, channels, parts,
        **shape.options_of_sums(groups),
    )  # fmt: skip
    programs.gradient_values[shape.grid](
        rows, gradient, *indices, _or(weights, rows), _or(starts, rows), *statistics, levels,
        result, *sizes, **options,
    )  # fmt: skip
    shift_gradient, scale_gradient = totals.sum(0).unbind(0)
    scale_gradient = scale_gradient.to(scale.dtype, copy=True)
    return result, scale_gradient, shift_gradient.clone(), constant_gradient


@_norm_swish_backward.register_fake
def _(
    gradient, rows, scale, shift, mean, factor, drift, groups, length, chosen, weights, owners,
    starts, swish,
):  # fmt: skip
    return tuple(torch.empty_like(tensor) for tensor in (rows, scale, shift, mean))


def _or(tensor: Tensor | None, stand_in: Tensor) -> Tensor:
    """A pointer that a kernel takes and, by its constants, never reads."""
    return stand_in if tensor is None else tensor


def _keep(ctx, inputs, output):
    rows, scale, shift, ctx.groups, _, ctx.length, weights, owners, starts, *options = inputs
    chosen = output[1] if len(output) == 5 else None
    ctx.swish = chosen is not None or options[0]  # always, before a maximum
    ctx.has_constant = options[-1] is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(rows, scale, shift, *output[-3:], chosen, weights, owners, starts)


def _differentiate(ctx, gradient, *_):
    count = len(ctx.needs_input_grad)
    if gradient is None:
        return (None,) * count
    rows, scale, shift, mean, factor, drift, *rest = ctx.saved_tensors
    *gradients, constant = _norm_swish_backward(
        gradient, rows, scale, shift, mean, factor, drift, ctx.groups, ctx.length, *rest, ctx.swish
    )
    return (*gradients, *(None,) * (count - 4), constant if ctx.has_constant else None)


norm_swish_fused.register_autograd(_differentiate, setup_context=_keep)
norm_swish_max_fused.register_autograd(_differentiate, setup_context=_keep)
