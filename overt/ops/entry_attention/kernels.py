"""Triton kernels of attention to the entries of each row, registered as one operator.

One program computes one row. Heads and entries are padded to 16, the smallest tile of a matrix
product. Nothing but the inputs is kept for the backward pass, and one matrix product adds up what
the rows have for the embedding. Rows and entries may lie in either order in memory, as they do in a
stack of what each frame wrote.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overt.ops.dropout.kernels import words_at
from overt.ops.dropout.plain import GOLDEN

TILE = 16


@triton.jit
def _load_queries(queries, row, rows, head, column, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """What each head has for a row, (heads, features), of a tensor (H, R, C)."""
    real = (head[:, None] < HEADS) & (column[None, :] < WIDTH)
    address = queries + (head[:, None].to(tl.int64) * rows + row) * WIDTH + column[None, :]
    return tl.load(address, mask=real, other=0.0)


@triton.jit
def _load_entries(entries, stride, entry, column, LENGTH: tl.constexpr, WIDTH: tl.constexpr):
    """A row's entries or the embedding, (entries, features)."""
    real = (entry[:, None] < LENGTH) & (column[None, :] < WIDTH)
    address = entries + entry[:, None].to(tl.int64) * stride + column[None, :]
    return tl.load(address, mask=real, other=0.0)


@triton.jit
def _load_keys(embedding, values, entry, column, LENGTH: tl.constexpr, WIDTH: tl.constexpr):
    """A row's entries with their embedding, if there is one, (entries, features)."""
    keys = values
    if embedding is not None:
        added = _load_entries(embedding, WIDTH, entry, column, LENGTH, WIDTH)
        keys = (values.to(tl.float32) + added.to(tl.float32)).to(values.dtype)
    return keys


@triton.jit
def _kept(seed, row, head, entry, key, bound, scale, HEADS: tl.constexpr, LENGTH: tl.constexpr):
    """Factors (heads, entries): zero where `dropout_plain` drops, `scale` elsewhere."""
    number = (row * HEADS + head[:, None]) * LENGTH + entry[None, :]
    return tl.where(words_at(number, seed, key) < bound, 0.0, scale)


@triton.jit
def _weigh(query, keys, ignore, row, entry, LENGTH: tl.constexpr, PRECISION: tl.constexpr):
    """The softmax (heads, entries) of a row, before dropout."""
    scores = tl.dot(query, tl.trans(keys), input_precision=PRECISION)
    real = entry < LENGTH
    if ignore is not None:
        ignored = tl.load(ignore + row * LENGTH + entry, mask=real, other=1)
        real = real & (ignored == 0)
    scores = tl.where(real[None, :], scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit(do_not_specialize=["rows", "key", "bound"])
def _forward(
    queries,
    entries,
    embedding,
    ignore,
    seed,
    result,
    sums,
    rows,
    row_stride,
    entry_stride,
    key,
    bound,
    scale,
    HEADS: tl.constexpr,
    LENGTH: tl.constexpr,
    WIDTH: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    ENTRY_TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head, entry, column = tl.arange(0, HEAD_TILE), tl.arange(0, ENTRY_TILE), tl.arange(0, COLUMNS)
    query = _load_queries(queries, row, rows, head, column, HEADS, WIDTH)
    own = entries + row * row_stride
    values = _load_entries(own, entry_stride, entry, column, LENGTH, WIDTH).to(query.dtype)
    keys = _load_keys(embedding, values, entry, column, LENGTH, WIDTH)
    weights = _weigh(query, keys, ignore, row, entry, LENGTH, PRECISION)
    if seed is not None:
        weights *= _kept(seed, row, head, entry, key, bound, scale, HEADS, LENGTH)
    read = tl.dot(weights.to(query.dtype), values, input_precision=PRECISION)
    real = (head[:, None] < HEADS) & (column[None, :] < WIDTH)
    address = result + (head[:, None].to(tl.int64) * rows + row) * WIDTH + column[None, :]
    tl.store(address, read.to(result.dtype.element_ty), mask=real)
    tl.store(sums + row * HEADS + head, tl.sum(weights, 1), mask=head < HEADS)


@triton.jit(do_not_specialize=["rows", "key", "bound"])
def _backward(
    queries,
    entries,
    embedding,
    ignore,
    seed,
    gradient,
    gradient_sums,
    to_queries,
    to_entries,
    to_scores,
    rows,
    row_stride,
    entry_stride,
    key,
    bound,
    scale,
    HEADS: tl.constexpr,
    LENGTH: tl.constexpr,
    WIDTH: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    ENTRY_TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head, entry, column = tl.arange(0, HEAD_TILE), tl.arange(0, ENTRY_TILE), tl.arange(0, COLUMNS)
    query = _load_queries(queries, row, rows, head, column, HEADS, WIDTH)
    incoming = _load_queries(gradient, row, rows, head, column, HEADS, WIDTH).to(query.dtype)
    own = entries + row * row_stride
    values = _load_entries(own, entry_stride, entry, column, LENGTH, WIDTH).to(query.dtype)
    keys = _load_keys(embedding, values, entry, column, LENGTH, WIDTH)
    weights = _weigh(query, keys, ignore, row, entry, LENGTH, PRECISION)
    to_weights = tl.dot(incoming, tl.trans(values), input_precision=PRECISION)
    if gradient_sums is not None:
        to_sum = tl.load(gradient_sums + row * HEADS + head, mask=head < HEADS, other=0.0)
        to_weights += to_sum[:, None]
    used = weights
    if seed is not None:
        kept = _kept(seed, row, head, entry, key, bound, scale, HEADS, LENGTH)
        to_weights *= kept
        used = weights * kept
    of_scores = weights * (to_weights - tl.sum(weights * to_weights, 1)[:, None])
    of_scores = of_scores.to(query.dtype)
    of_head = head[:, None].to(tl.int64) * rows + row
    if to_scores is not None:
        tl.store(
            to_scores + of_head * ENTRY_TILE + entry[None, :], of_scores, mask=head[:, None] < HEADS
        )
    to_query = tl.dot(of_scores, keys, input_precision=PRECISION)
    real = (head[:, None] < HEADS) & (column[None, :] < WIDTH)
    address = to_queries + of_head * WIDTH + column[None, :]
    tl.store(address, to_query.to(to_queries.dtype.element_ty), mask=real)
    to_keys = tl.dot(tl.trans(of_scores), query, input_precision=PRECISION)
    used = tl.trans(used.to(query.dtype))
    to_values = tl.dot(used, incoming, to_keys, input_precision=PRECISION)
    real = (entry[:, None] < LENGTH) & (column[None, :] < WIDTH)
    address = to_entries + row * row_stride + entry[:, None].to(tl.int64) * entry_stride
    tl.store(address + column[None, :], to_values.to(to_entries.dtype.element_ty), mask=real)


def _options(queries: Tensor, length: int) -> dict[str, int | str]:
    heads, _, width = queries.shape
    return {
        "HEADS": heads,
        "LENGTH": length,
        "WIDTH": width,
        "HEAD_TILE": TILE,
        "ENTRY_TILE": max(TILE, triton.next_power_of_2(length)),
        "COLUMNS": max(TILE, triton.next_power_of_2(width)),
        "PRECISION": "ieee",  # of float32; 16-bit numbers are multiplied as they are
        # Products of float32 are unrolled: for four warps they compile in a fifth of the time.
        "num_warps": 4 if queries.dtype == torch.float32 else 1,
    }


def _dense(entries: Tensor) -> Tensor:
    """The entries without gaps: row by row, or entry by entry."""
    by_entry = entries.transpose(0, 1).is_contiguous()
    return entries if by_entry else entries.contiguous()


def _dropping(site: int, rate: float) -> tuple[int, int, float]:
    """Key, bound and scale of `dropout_plain`."""
    return site * GOLDEN, round(rate * 2**32), 1 / (1 - rate)


@torch.library.custom_op("overt::attend_entries", mutates_args=())
def attend_entries(
    queries: Tensor,
    entries: Tensor,
    embedding: Tensor | None,
    ignore: Tensor | None,
    seed: Tensor | None,
    site: int,
    rate: float,
) -> tuple[Tensor, Tensor]:
    """See `entry_attention`."""
    heads, rows, _ = queries.shape
    queries, entries = queries.contiguous(), _dense(entries)
    result = torch.empty_like(queries)
    sums = queries.new_empty((rows, heads), dtype=torch.float32)
    _forward[(rows,)](
        queries,
        entries,
        None if embedding is None else embedding.contiguous(),
        None if ignore is None else ignore.contiguous(),
        seed,
        result,
        sums,
        rows,
        *entries.stride()[:2],
        *_dropping(site, rate),
        **_options(queries, entries.shape[1]),
    )
    return result, sums


@attend_entries.register_fake
def _(
    queries: Tensor,
    entries: Tensor,
    embedding: Tensor | None,
    ignore: Tensor | None,
    seed: Tensor | None,
    site: int,
    rate: float,
) -> tuple[Tensor, Tensor]:
    sums = queries.new_empty((queries.shape[1], queries.shape[0]), dtype=torch.float32)
    return torch.empty_like(queries, memory_format=torch.contiguous_format), sums


@torch.library.custom_op("overt::attend_entries_backward", mutates_args=())
def _attend_entries_backward(
    gradient: Tensor,
    gradient_sums: Tensor | None,
    queries: Tensor,
    entries: Tensor,
    embedding: Tensor | None,
    ignore: Tensor | None,
    seed: Tensor | None,
    site: int,
    rate: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, entries and embedding; an empty one of no embedding."""
    heads, rows, _ = queries.shape
    length = entries.shape[1]
    queries, entries = queries.contiguous(), _dense(entries)
    to_queries, to_entries = torch.empty_like(queries), torch.empty_like(entries)
    options = _options(queries, length)
    to_scores = None
    if embedding is not None:
        to_scores = queries.new_empty((heads, rows, options["ENTRY_TILE"]))
    _backward[(rows,)](
        queries,
        entries,
        None if embedding is None else embedding.contiguous(),
        None if ignore is None else ignore.contiguous(),
        seed,
        gradient.contiguous(),
        None if gradient_sums is None else gradient_sums.contiguous(),
        to_queries,
        to_entries,
        to_scores,
        rows,
        *entries.stride()[:2],
        *_dropping(site, rate),
        **options,
    )
    if embedding is None or to_scores is None:
        return to_queries, to_entries, queries.new_empty((0,))
    to_embedding = to_scores.flatten(0, 1).T @ queries.flatten(0, 1)  # (entries, C)
    return to_queries, to_entries, to_embedding[:length].to(embedding.dtype, copy=True)


@_attend_entries_backward.register_fake
def _(
    gradient: Tensor,
    gradient_sums: Tensor | None,
    queries: Tensor,
    entries: Tensor,
    embedding: Tensor | None,
    ignore: Tensor | None,
    seed: Tensor | None,
    site: int,
    rate: float,
) -> tuple[Tensor, Tensor, Tensor]:
    contiguous = torch.contiguous_format
    if embedding is None:
        to_embedding = queries.new_empty((0,))
    else:
        to_embedding = torch.empty_like(embedding, memory_format=contiguous)
    to_queries = torch.empty_like(queries, memory_format=contiguous)
    return to_queries, torch.empty_like(_dense(entries)), to_embedding


def _keep(ctx, inputs, output):
    *tensors, ctx.site, ctx.rate = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)  # nobody may need the sums


def _differentiate(ctx, gradient, gradient_sums):
    queries, entries, embedding, ignore, seed = ctx.saved_tensors
    if gradient is None:
        gradient = torch.zeros_like(queries)
    to_queries, to_entries, to_embedding = _attend_entries_backward(
        gradient, gradient_sums, queries, entries, embedding, ignore, seed, ctx.site, ctx.rate
    )
    to_embedding = None if embedding is None else to_embedding
    return to_queries, to_entries, to_embedding, None, None, None, None


attend_entries.register_autograd(_differentiate, setup_context=_keep)
