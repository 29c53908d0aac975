"""Triton kernels of sums of rows and their transpose: each is the backward pass of the other.

A program serves a block of results and all their channels, which lie side by side in memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

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


@triton.jit
def _spread(
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
    values = tl.load(
        rows + result_row[:, None] * channels + channel[None, :], mask=inside, other=0.0
    )
    values = values.to(tl.float32)
    for term in tl.static_range(TERMS):
        row = tl.load(index + result_row * TERMS + term, mask=real, other=0).to(tl.int64)
        terms = values
        adds = inside
        if WEIGHTED:
            part = tl.load(weight + result_row * TERMS + term, mask=real, other=0.0)
            terms = values * part[:, None]
            adds = inside & (part != 0)[:, None]
        target = result + row[:, None] * channels + channel[None, :]
        tl.atomic_add(target, terms, mask=adds, sem="relaxed")


def _launch(kernel, rows: Tensor, index: Tensor, weight: Tensor | None, result: Tensor) -> None:
    (results, terms), channels = index.shape, rows.shape[1]
    if results == 0 or channels == 0:
        return
    width = triton.next_power_of_2(channels)
    height = max(TILE // width, 1)
    kernel[(triton.cdiv(results, height),)](
        rows.contiguous(),
        index.contiguous(),
        index if weight is None else weight.contiguous(),
        result,
        results,
        channels,
        TERMS=terms,
        WEIGHTED=weight is not None,
        RESULTS=height,
        CHANNELS=width,
    )


@torch.library.custom_op("overt::mix_rows", mutates_args=())
def mix_rows_fused(rows: Tensor, index: Tensor, weight: Tensor | None) -> Tensor:
    """See `mix_rows`."""
    result = rows.new_empty((index.shape[0], rows.shape[1]))
    _launch(_mix, rows, index, weight, result)
    return result


@mix_rows_fused.register_fake
def _(rows: Tensor, index: Tensor, weight: Tensor | None) -> Tensor:
    return rows.new_empty((index.shape[0], rows.shape[1]))


@torch.library.custom_op("overt::spread_rows", mutates_args=())
def spread_rows_fused(rows: Tensor, index: Tensor, weight: Tensor | None, count: int) -> Tensor:
    """See `spread_rows`."""
    result = torch.zeros((count, rows.shape[1]), dtype=torch.float32, device=rows.device)
    _launch(_spread, rows, index, weight, result)
    return result.to(rows.dtype, copy=False)


@spread_rows_fused.register_fake
def _(rows: Tensor, index: Tensor, weight: Tensor | None, count: int) -> Tensor:
    return rows.new_empty((count, rows.shape[1]))


def _keep(ctx, inputs, output):
    rows, index, weight, *_ = inputs
    ctx.count = rows.shape[0]
    ctx.save_for_backward(index, weight)


def _differentiate_mix(ctx, gradient):
    return spread_rows_fused(gradient, *ctx.saved_tensors, ctx.count), None, None


def _differentiate_spread(ctx, gradient):
    return mix_rows_fused(gradient, *ctx.saved_tensors), None, None, None


mix_rows_fused.register_autograd(_differentiate_mix, setup_context=_keep)
spread_rows_fused.register_autograd(_differentiate_spread, setup_context=_keep)
