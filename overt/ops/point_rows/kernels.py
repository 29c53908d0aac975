"""Sums of rows by a Triton kernel, and their transpose: each is the backward pass of the other.

A program serves a block of results and all their channels, which lie side by side in memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overt.ops.point_rows.list_kernels import sum_lists
from overt.ops.point_rows.lists import sort_terms

TILE = 1024  # numbers of a block: results times channels


@triton.jit
def _mix(
    rows,
    index,
    weight,
    result,
    results,
    channels,
    TERMS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    RESULTS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    result_row = tl.program_id(0).to(tl.int64) * RESULTS + tl.arange(0, RESULTS)
    channel = tl.arange(0, CHANNELS)
    real = result_row < results
    inside = real[:, None] & (channel < channels)[None, :]
    total = tl.zeros((RESULTS, CHANNELS), dtype=tl.float32)
    for term in tl.static_range(TERMS):
        row = tl.load(index + result_row * TERMS + term, mask=real, other=0).to(tl.int64)
        values = tl.load(rows + row[:, None] * channels + channel[None, :], mask=inside, other=0.0)
        if WEIGHTED:
            factor = tl.load(weight + result_row * TERMS + term, mask=real, other=0.0)
            total += values.to(tl.float32) * factor[:, None]
        else:
            total += values.to(tl.float32)
    target = result + result_row[:, None] * channels + channel[None, :]
    tl.store(target, total.to(result.dtype.element_ty), mask=inside)


@torch.library.custom_op("overt::mix_rows", mutates_args=())
def mix_rows_fused(
    rows: Tensor,
    index: Tensor,
    weight: Tensor | None,
    starts: Tensor | None = None,
    terms: Tensor | None = None,
    side: int = 0,
) -> Tensor:
    """See `mix_rows`; the lists, `RowLists`, are for the gradient."""
    (results, per_result), channels = index.shape, rows.shape[1]
    result = rows.new_empty((results, channels))
    if result.numel() == 0:
        return result
    width = triton.next_power_of_2(channels)
    height = max(TILE // width, 1)
    _mix[(triton.cdiv(results, height),)](
        rows.contiguous(),
        index.contiguous(),
        index if weight is None else weight.contiguous(),
        result,
        results,
        channels,
        TERMS=per_result,
        WEIGHTED=weight is not None,
        RESULTS=height,
        CHANNELS=width,
    )
    return result


@mix_rows_fused.register_fake
def _(rows, index, weight, starts=None, terms=None, side=0):
    return rows.new_empty((index.shape[0], rows.shape[1]))


@torch.library.custom_op("overt::spread_rows", mutates_args=())
def spread_rows_fused(
    rows: Tensor,
    index: Tensor,
    weight: Tensor | None,
    count: int,
    starts: Tensor | None = None,
    terms: Tensor | None = None,
    side: int = 0,
) -> Tensor:
    """See `spread_rows`; without lists they are made here."""
    if starts is None or terms is None:
        starts, terms, side = sort_terms(index, count)
    assert starts.shape[0] == count + 1
    return sum_lists(rows, starts, terms, weight, index.shape[1], side)


@spread_rows_fused.register_fake
def _(rows, index, weight, count, starts=None, terms=None, side=0):
    return rows.new_empty((count, rows.shape[1]))


def _keep_mix(ctx, inputs, output):
    rows, index, weight, starts, terms, ctx.side = inputs
    ctx.count = rows.shape[0]
    ctx.save_for_backward(index, weight, starts, terms)


def _keep_spread(ctx, inputs, output):
    _, index, weight, _, starts, terms, ctx.side = inputs
    ctx.save_for_backward(index, weight, starts, terms)


def _differentiate_mix(ctx, gradient):
    index, weight, starts, terms = ctx.saved_tensors
    rows = spread_rows_fused(gradient, index, weight, ctx.count, starts, terms, ctx.side)
    return (rows, *(None,) * 5)


def _differentiate_spread(ctx, gradient):
    index, weight, starts, terms = ctx.saved_tensors
    rows = mix_rows_fused(gradient, index, weight, starts, terms, ctx.side)
    return (rows, *(None,) * 6)


mix_rows_fused.register_autograd(_differentiate_mix, setup_context=_keep_mix)
spread_rows_fused.register_autograd(_differentiate_spread, setup_context=_keep_spread)
