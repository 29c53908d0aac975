"""Triton kernels of attention in short sequences, registered as one operator that compile sees.

One program serves one head of one sequence, so that nothing is added up between programs. Sequences
are served by length: each launch takes those it is made for, and its other programs end at once.

Letters: S sequences, T tokens in all, H heads, d features of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Tiling(NamedTuple):
    """How one launch serves the sequences of more than `over` and up to `up_to` tokens."""

    over: int
    up_to: int
    queries: int  # of a tile; in the backward pass all of a sequence, where `up_to` fits
    keys: int
    warps: int
    stages: int = 1
    registers: int | None = None  # of a thread at most, where more programs are worth some spilling


def forward_tilings(bound: int) -> list[Tiling]:
    """The launches of a forward pass."""
    steps = [
        Tiling(0, 64, queries=64, keys=64, warps=4),
        Tiling(64, 128, queries=128, keys=64, warps=8),
        Tiling(128, bound, queries=64, keys=64, warps=4, stages=2),
    ]
    return [step for step in steps if step.over < bound]


def backward_tilings(bound: int, width: int) -> list[Tiling]:
    """The launches of a backward pass."""
    if width <= 32:
        middle = Tiling(64, 128, queries=128, keys=64, warps=8, registers=128)
    else:
        middle = Tiling(64, 128, queries=128, keys=128, warps=8)
    steps = [
        Tiling(0, 64, queries=64, keys=64, warps=4),
        middle,
        Tiling(128, bound, queries=64, keys=64, warps=4 if width <= 64 else 8),
    ]
    return [step for step in steps if step.over < bound]


@triton.jit
def _load(pointer, row, column, length, STRIDE: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of a sequence, zeros outside of it."""
    real = (row[:, None] < length) & (column[None, :] < WIDTH)
    return tl.load(pointer + row[:, None] * STRIDE + column[None, :], mask=real, other=0.0)


@triton.jit
def _store(pointer, tile, row, column, length, STRIDE: tl.constexpr, WIDTH: tl.constexpr):
    real = (row[:, None] < length) & (column[None, :] < WIDTH)
    address = pointer + row[:, None] * STRIDE + column[None, :]
    tl.store(address, tile.to(pointer.dtype.element_ty), mask=real)


@triton.jit
def _scores(query, key, row, length, scale):
    """(queries, keys) in powers of two, with no weight for keys outside of the sequence."""
    scores = tl.dot(query, tl.trans(key)) * scale
    return tl.where(row[None, :] < length, scores, float("-inf"))


@triton.jit(do_not_specialize=["tokens"])
def _forward(
    qkv,
    offsets,
    result,
    logarithms,
    tokens,
    scale,
    OVER: tl.constexpr,
    UP_TO: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
):
    IN: tl.constexpr = 3 * HEADS * WIDTH  # numbers of a token
    OUT: tl.constexpr = HEADS * WIDTH
    sequence = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS  # neighbors read neighboring memory
    begin = tl.load(offsets + sequence)
    length = tl.load(offsets + sequence + 1) - begin
    if (length <= OVER) | (length > UP_TO):
        return
    begin = begin.to(tl.int64)
    queries = qkv + begin * IN + head * WIDTH
    result += begin * OUT + head * WIDTH
    logarithms += head.to(tl.int64) * tokens + begin
    column = tl.arange(0, PADDED)
    for first_query in range(0, QUERIES if UP_TO <= QUERIES else length, QUERIES):
        query_row = first_query + tl.arange(0, QUERIES)
        query = _load(queries, query_row, column, length, IN, WIDTH)
        largest = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
        total = tl.zeros((QUERIES,), dtype=tl.float32)
        mixed = tl.zeros((QUERIES, PADDED), dtype=tl.float32)
        for first_key in range(0, KEYS if UP_TO <= KEYS else length, KEYS):
            key_row = first_key + tl.arange(0, KEYS)
            key = _load(queries + OUT, key_row, column, length, IN, WIDTH)
            value = _load(queries + 2 * OUT, key_row, column, length, IN, WIDTH)
            scores = _scores(query, key, key_row, length, scale)
            new_largest = tl.maximum(largest, tl.max(scores, 1))
            shrink = tl.exp2(largest - new_largest)
            weights = tl.exp2(scores - new_largest[:, None])
            total = total * shrink + tl.sum(weights, 1)
            mixed = tl.dot(weights.to(value.dtype), value, mixed * shrink[:, None])
            largest = new_largest
        _store(result, mixed / total[:, None], query_row, column, length, OUT, WIDTH)
        logarithm = largest + tl.log2(total)
        tl.store(logarithms + query_row, logarithm, mask=query_row < length)


@triton.jit
def _load_logarithms(logarithms, row, length):
    """Infinite outside of the sequence, so that such queries give no weight to any key."""
    return tl.load(logarithms + row, mask=row < length, other=float("inf"))


@triton.jit
def _mean(result, incoming, row, column, length, STRIDE: tl.constexpr, WIDTH: tl.constexpr):
    """The gradient of weights in the mean over all keys, (queries,)."""
    mixed = _load(result, row, column, length, STRIDE, WIDTH)
    return tl.sum(incoming.to(tl.float32) * mixed.to(tl.float32), 1)


@triton.jit
def _differentiate_scores(query, incoming, mean, logarithm, key, value, row, length, scale):
    """Weights and gradients of scores, (queries, keys) each; no `mean` if these are all keys."""
    weights = tl.exp2(_scores(query, key, row, length, scale) - logarithm[:, None])
    to_weights = tl.dot(incoming, tl.trans(value))
    if mean is None:
        mean = tl.sum(weights * to_weights, 1)
    to_scores = weights * (to_weights - mean[:, None])
    return weights.to(query.dtype), to_scores.to(query.dtype)


@triton.jit(do_not_specialize=["tokens"])
def _backward(
    qkv,
    offsets,
    result,
    logarithms,
    gradient,
    gradient_qkv,
    tokens,
    scale,
    slope,
    OVER: tl.constexpr,
    UP_TO: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
):
    IN: tl.constexpr = 3 * HEADS * WIDTH
    OUT: tl.constexpr = HEADS * WIDTH
    sequence = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    begin = tl.load(offsets + sequence)
    length = tl.load(offsets + sequence + 1) - begin
    if (length <= OVER) | (length > UP_TO):
        return
    begin = begin.to(tl.int64)
    queries = qkv + begin * IN + head * WIDTH
    to_queries = gradient_qkv + begin * IN + head * WIDTH
    result += begin * OUT + head * WIDTH
    gradient += begin * OUT + head * WIDTH
    logarithms += head.to(tl.int64) * tokens + begin
    column = tl.arange(0, PADDED)
    if UP_TO <= QUERIES:  # each tile of keys meets all queries at once: everything is read once
        query_row = tl.arange(0, QUERIES)
        query = _load(queries, query_row, column, length, IN, WIDTH)
        incoming = _load(gradient, query_row, column, length, OUT, WIDTH)
        logarithm = _load_logarithms(logarithms, query_row, length)
        if UP_TO <= KEYS:
            mean = None
        else:
            mean = _mean(result, incoming, query_row, column, length, OUT, WIDTH)
        to_query = tl.zeros((QUERIES, PADDED), dtype=tl.float32)
        for first_key in range(0, KEYS if UP_TO <= KEYS else length, KEYS):
            key_row = first_key + tl.arange(0, KEYS)
            key = _load(queries + OUT, key_row, column, length, IN, WIDTH)
            value = _load(queries + 2 * OUT, key_row, column, length, IN, WIDTH)
            weights, to_scores = _differentiate_scores(
                query, incoming, mean, logarithm, key, value, key_row, length, scale
            )
            to_value = tl.dot(tl.trans(weights), incoming)
            _store(to_queries + 2 * OUT, to_value, key_row, column, length, IN, WIDTH)
            to_key = tl.dot(tl.trans(to_scores), query) * slope
            _store(to_queries + OUT, to_key, key_row, column, length, IN, WIDTH)
            to_query = tl.dot(to_scores, key, to_query)
        _store(to_queries, to_query * slope, query_row, column, length, IN, WIDTH)
    else:  # first keys and values, then queries, so that each sum stays in registers
        for first_key in range(0, length, KEYS):
            key_row = first_key + tl.arange(0, KEYS)
            key = _load(queries + OUT, key_row, column, length, IN, WIDTH)
            value = _load(queries + 2 * OUT, key_row, column, length, IN, WIDTH)
            to_key = tl.zeros((KEYS, PADDED), dtype=tl.float32)
            to_value = tl.zeros((KEYS, PADDED), dtype=tl.float32)
            for first_query in range(0, length, QUERIES):
                query_row = first_query + tl.arange(0, QUERIES)
                query = _load(queries, query_row, column, length, IN, WIDTH)
                incoming = _load(gradient, query_row, column, length, OUT, WIDTH)
                logarithm = _load_logarithms(logarithms, query_row, length)
                mean = _mean(result, incoming, query_row, column, length, OUT, WIDTH)
                weights, to_scores = _differentiate_scores(
                    query, incoming, mean, logarithm, key, value, key_row, length, scale
                )
                to_value = tl.dot(tl.trans(weights), incoming, to_value)
                to_key = tl.dot(tl.trans(to_scores), query, to_key)
            _store(to_queries + OUT, to_key * slope, key_row, column, length, IN, WIDTH)
            _store(to_queries + 2 * OUT, to_value, key_row, column, length, IN, WIDTH)
        for first_query in range(0, length, QUERIES):
            query_row = first_query + tl.arange(0, QUERIES)
            query = _load(queries, query_row, column, length, IN, WIDTH)
            incoming = _load(gradient, query_row, column, length, OUT, WIDTH)
            logarithm = _load_logarithms(logarithms, query_row, length)
            mean = _mean(result, incoming, query_row, column, length, OUT, WIDTH)
            to_query = tl.zeros((QUERIES, PADDED), dtype=tl.float32)
            for first_key in range(0, length, KEYS):
                key_row = first_key + tl.arange(0, KEYS)
                key = _load(queries + OUT, key_row, column, length, IN, WIDTH)
                value = _load(queries + 2 * OUT, key_row, column, length, IN, WIDTH)
                _, to_scores = _differentiate_scores(
                    query, incoming, mean, logarithm, key, value, key_row, length, scale
                )
                to_query = tl.dot(to_scores, key, to_query)
            _store(to_queries, to_query * slope, query_row, column, length, IN, WIDTH)


def _options(qkv: Tensor, tiling: Tiling) -> dict[str, int | None]:
    _, _, heads, width = qkv.shape
    return {
        "OVER": tiling.over,
        "UP_TO": tiling.up_to,
        "QUERIES": tiling.queries,
        "KEYS": tiling.keys,
        "HEADS": heads,
        "WIDTH": width,
        "PADDED": max(triton.next_power_of_2(width), 16),
        "num_warps": tiling.warps,
        "num_stages": tiling.stages,
        "maxnreg": tiling.registers,
    }


def launch_forward(
    qkv: Tensor, offsets: Tensor, tilings: Sequence[Tiling]
) -> tuple[Tensor, Tensor]:
    """The result (T, H, d), and for the backward pass logarithms (base 2) of the sums, (H, T)."""
    tokens, _, heads, width = qkv.shape
    qkv = qkv.contiguous()
    result = qkv.new_empty((tokens, heads, width))
    logarithms = qkv.new_empty((heads, tokens), dtype=torch.float32)
    scale = width**-0.5 * math.log2(math.e)
    for tiling in tilings:
        _forward[((len(offsets) - 1) * heads,)](
            qkv, offsets, result, logarithms, tokens, scale, **_options(qkv, tiling)
        )
    return result, logarithms


def launch_backward(
    gradient: Tensor,
    qkv: Tensor,
    offsets: Tensor,
    result: Tensor,
    logarithms: Tensor,
    tilings: Sequence[Tiling],
) -> Tensor:
    """The gradient of `qkv`."""
    tokens, _, heads, width = qkv.shape
    qkv, gradient = qkv.contiguous(), gradient.contiguous()
    gradient_qkv = torch.empty_like(qkv)
    slope = width**-0.5
    scale = slope * math.log2(math.e)
    for tiling in tilings:
        _backward[((len(offsets) - 1) * heads,)](
            qkv,
            offsets,
            result,
            logarithms,
            gradient,
            gradient_qkv,
            tokens,
            scale,
            slope,
            **_options(qkv, tiling),
        )
    return gradient_qkv


@torch.library.custom_op("overt::attend_short", mutates_args=())
def attend_short(qkv: Tensor, offsets: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    """See `packed_attention`; the second result is for the backward pass alone."""
    return launch_forward(qkv, offsets, forward_tilings(bound))


@attend_short.register_fake
def _(qkv: Tensor, offsets: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    tokens, _, heads, width = qkv.shape
    result = qkv.new_empty((tokens, heads, width))
    return result, qkv.new_empty((heads, tokens), dtype=torch.float32)


@torch.library.custom_op("overt::attend_short_backward", mutates_args=())
def _attend_short_backward(
    gradient: Tensor, qkv: Tensor, offsets: Tensor, result: Tensor, logarithms: Tensor, bound: int
) -> Tensor:
    tilings = backward_tilings(bound, qkv.shape[-1])
    return launch_backward(gradient, qkv, offsets, result, logarithms, tilings)


@_attend_short_backward.register_fake
def _(
    gradient: Tensor, qkv: Tensor, offsets: Tensor, result: Tensor, logarithms: Tensor, bound: int
) -> Tensor:
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _keep(ctx, inputs, output):
    qkv, offsets, ctx.bound = inputs
    ctx.save_for_backward(qkv, offsets, *output)
    ctx.set_materialize_grads(False)  # the logarithms have none


def _differentiate(ctx, gradient, _):
    return _attend_short_backward(gradient, *ctx.saved_tensors, ctx.bound), None, None


attend_short.register_autograd(_differentiate, setup_context=_keep)
