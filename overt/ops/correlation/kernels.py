"""Triton kernels of the correlation, registered as one operator that compile can see.

One program serves one point, one level and a run of frames: the query's samples stay on the chip,
the square of cells around each position is read once, and its P*P interpolated samples are never
written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overt.ops.correlation.shared_gradient import SharedGradient
from overt.ops.correlation.sizes import padded_width, pitch

FRAMES_PER_PROGRAM = 16
WARPS = 4


@triton.jit
def _square(centre_xy, map_row, size_xy, RADIUS: tl.constexpr, CELLS: tl.constexpr):
    """Rows of the S x S cells around a center, and the fractions of the center."""
    SIDE: tl.constexpr = 2 * RADIUS + 2
    x = tl.load(centre_xy)
    y = tl.load(centre_xy + 1)
    width = tl.load(size_xy)
    height = tl.load(size_xy + 1)
    floor_x = tl.floor(x)
    floor_y = tl.floor(y)
    # Far outside, every cell is the border's: clamping first keeps the whole number small.
    first_x = tl.minimum(tl.maximum(floor_x, -1.0e6), 1.0e6).to(tl.int64) - RADIUS
    first_y = tl.minimum(tl.maximum(floor_y, -1.0e6), 1.0e6).to(tl.int64) - RADIUS
    cell = tl.arange(0, CELLS)  # x varies slowest
    column = tl.minimum(tl.maximum(first_x + cell // SIDE, 0), width - 1)
    line = tl.minimum(tl.maximum(first_y + cell % SIDE, 0), height - 1)
    rows = tl.load(map_row) + line * width + column
    return rows, x - floor_x, y - floor_y


@triton.jit
def _weights(
    fraction_x, fraction_y, RADIUS: tl.constexpr, SAMPLES: tl.constexpr, CELLS: tl.constexpr
):
    """The matrix (samples, cells) of bilinear weights that makes samples of cells."""
    SIDE: tl.constexpr = 2 * RADIUS + 2
    ACROSS: tl.constexpr = 2 * RADIUS + 1
    sample = tl.arange(0, SAMPLES)[:, None]
    cell = tl.arange(0, CELLS)[None, :]
    step_x = cell // SIDE - sample // ACROSS
    step_y = cell % SIDE - sample % ACROSS
    along_x = tl.where(step_x == 0, 1.0 - fraction_x, tl.where(step_x == 1, fraction_x, 0.0))
    along_y = tl.where(step_y == 0, 1.0 - fraction_y, tl.where(step_y == 1, fraction_y, 0.0))
    real = (sample < ACROSS * ACROSS) & (cell < SIDE * SIDE)
    return tl.where(real, along_x * along_y, 0.0)


@triton.jit
def _forward(
    cells,
    support,
    map_rows,
    sizes_xy,
    centres,
    result,
    points,
    levels,
    frames,
    RADIUS: tl.constexpr,
    PITCH: tl.constexpr,
    CHANNELS: tl.constexpr,
    SAMPLES: tl.constexpr,
    CELLS: tl.constexpr,
    FRAMES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    SIDE: tl.constexpr = 2 * RADIUS + 2
    COUNT: tl.constexpr = (2 * RADIUS + 1) * (2 * RADIUS + 1)
    item = tl.program_id(0).to(tl.int64)  # (b, n, l)
    level = item % levels
    sample_of_batch = item // levels // points
    channel = tl.arange(0, CHANNELS)
    query = tl.arange(0, SAMPLES)
    sample = tl.arange(0, SAMPLES)
    near_query = tl.load(
        support + (item * COUNT + query[:, None]) * CHANNELS + channel[None, :],
        mask=query[:, None] < COUNT,
        other=0.0,
    )  # (queries, C)
    cell_is_real = tl.arange(0, CELLS) < SIDE * SIDE
    for step in range(FRAMES):
        frame_index = tl.program_id(1) * FRAMES + step
        frame = tl.minimum(frame_index, frames - 1)  # past the end: the last frame again
        row = item * frames + frame
        first_row = map_rows + (sample_of_batch * levels + level) * frames + frame
        rows, fraction_x, fraction_y = _square(
            centres + row * 2, first_row, sizes_xy + level * 2, RADIUS, CELLS
        )
        square = tl.load(
            cells + rows[:, None] * CHANNELS + channel[None, :],
            mask=cell_is_real[:, None],
            other=0.0,
        )  # (cells, C)
        products = tl.dot(square, tl.trans(near_query), input_precision=PRECISION)
        mix = _weights(fraction_x, fraction_y, RADIUS, SAMPLES, CELLS)
        if PRECISION == "tf32":  # float16 has its digits, and the range of products of features
            mix = mix.to(tl.float16)
            products = products.to(tl.float16)
        mixed = tl.dot(mix, products, input_precision=PRECISION)  # (samples, queries)
        # Beyond the query's samples the products are zero, and so is what fills up the row.
        address = result + (row * COUNT + sample[:, None]) * PITCH + query[None, :]
        real = (sample[:, None] < COUNT) & (query[None, :] < PITCH)
        tl.store(address, mixed.to(result.dtype.element_ty), mask=real)


@triton.jit
def _backward(
    cells,
    support,
    map_rows,
    sizes_xy,
    centres,
    gradient,
    gradient_cells,
    gradient_support,
    points,
    levels,
    frames,
    RADIUS: tl.constexpr,
    PITCH: tl.constexpr,
    CHANNELS: tl.constexpr,
    SAMPLES: tl.constexpr,
    CELLS: tl.constexpr,
    FRAMES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    SIDE: tl.constexpr = 2 * RADIUS + 2
    COUNT: tl.constexpr = (2 * RADIUS + 1) * (2 * RADIUS + 1)
    item = tl.program_id(0).to(tl.int64)
    level = item % levels
    sample_of_batch = item // levels // points
    channel = tl.arange(0, CHANNELS)
    query = tl.arange(0, SAMPLES)
    sample = tl.arange(0, SAMPLES)
    support_index = (item * COUNT + query[:, None]) * CHANNELS + channel[None, :]
    query_is_real = query[:, None] < COUNT
    near_query = tl.load(support + support_index, mask=query_is_real, other=0.0)
    total = tl.zeros((SAMPLES, CHANNELS), dtype=tl.float32)
    cell_is_real = tl.arange(0, CELLS) < SIDE * SIDE
    for step in range(FRAMES):
        frame_index = tl.program_id(1) * FRAMES + step
        frame = tl.minimum(frame_index, frames - 1)  # past the end: the last frame again
        row = item * frames + frame
        first_row = map_rows + (sample_of_batch * levels + level) * frames + frame
        rows, fraction_x, fraction_y = _square(
            centres + row * 2, first_row, sizes_xy + level * 2, RADIUS, CELLS
        )
        positions = rows[:, None] * CHANNELS + channel[None, :]
        square = tl.load(cells + positions, mask=cell_is_real[:, None], other=0.0)
        address = gradient + (row * COUNT + sample[:, None]) * PITCH + query[None, :]
        real = (sample[:, None] < COUNT) & (query[None, :] < PITCH) & (frame_index < frames)
        incoming = tl.load(address, mask=real, other=0.0)  # (samples, queries)
        mix = _weights(fraction_x, fraction_y, RADIUS, SAMPLES, CELLS).to(incoming.dtype)
        products = tl.dot(tl.trans(mix), incoming, input_precision=PRECISION)
        products = products.to(square.dtype)  # (cells, queries)
        total = tl.dot(tl.trans(products), square, total, input_precision=PRECISION)
        to_cells = tl.dot(products, near_query, input_precision=PRECISION)  # (cells, C)
        tl.atomic_add(
            gradient_cells + positions, to_cells, mask=cell_is_real[:, None], sem="relaxed"
        )
    # Several programs share a point where there are many frames.
    tl.atomic_add(gradient_support + support_index, total, mask=query_is_real, sem="relaxed")


def _sizes(support: Tensor, centres_xy: Tensor, radius: int) -> dict[str, int]:
    frames = centres_xy.shape[3]
    return {
        "RADIUS": radius,
        "PITCH": pitch(radius),
        "CHANNELS": support.shape[-1],
        "SAMPLES": max(triton.next_power_of_2((2 * radius + 1) ** 2), 16),
        "CELLS": max(triton.next_power_of_2((2 * radius + 2) ** 2), 16),
        "FRAMES": triton.cdiv(frames, triton.cdiv(frames, FRAMES_PER_PROGRAM)),
    }


@torch.library.custom_op("overt::correlate", mutates_args=())
def correlate_fused(
    cells: Tensor,  # (rows, C) float32: what gradients belong to
    cells_used: Tensor,  # (rows, C) the same in the type to compute in
    support: Tensor,
    map_rows: Tensor,
    sizes_xy: Tensor,
    centres_xy: Tensor,
    radius: int,
) -> Tensor:
    """See `correlate`; the result is `padded_width` wide."""
    batch, points, levels, frames, _ = centres_xy.shape
    result = cells_used.new_empty((batch, points, levels, frames, padded_width(radius)))
    sizes = _sizes(support, centres_xy, radius)
    grid = (batch * points * levels, triton.cdiv(frames, sizes["FRAMES"]))
    _forward[grid](
        cells_used.contiguous(),
        support.to(cells_used.dtype).contiguous(),
        map_rows.contiguous(),
        sizes_xy.contiguous(),
        centres_xy.contiguous(),
        result,
        points,
        levels,
        frames,
        num_warps=WARPS,
        PRECISION="ieee" if cells_used.dtype == torch.float32 else "tf32",
        **sizes,
    )
    return result


@correlate_fused.register_fake
def _(
    cells: Tensor,
    cells_used: Tensor,
    support: Tensor,
    map_rows: Tensor,
    sizes_xy: Tensor,
    centres_xy: Tensor,
    radius: int,
) -> Tensor:
    return cells_used.new_empty((*centres_xy.shape[:4], padded_width(radius)))


@torch.library.custom_op("overt::correlate_backward", mutates_args=())
def _correlate_backward(
    gradient: Tensor,
    cells_used: Tensor,
    support: Tensor,
    map_rows: Tensor,
    sizes_xy: Tensor,
    centres_xy: Tensor,
    radius: int,
) -> tuple[Tensor, Tensor]:
    gradient_cells = torch.zeros_like(cells_used, dtype=torch.float32)
    gradient_support = _add_gradients(
        gradient_cells, gradient, cells_used, support, map_rows, sizes_xy, centres_xy, radius
    )
    return gradient_cells, gradient_support


def _add_gradients(
    gradient_cells: Tensor,  # (rows, C) float32, added to
    gradient: Tensor,
    cells_used: Tensor,
    support: Tensor,
    map_rows: Tensor,
    sizes_xy: Tensor,
    centres_xy: Tensor,
    radius: int,
) -> Tensor:
    """Add the cells' gradient to a table; the gradient of `support`."""
    batch, points, levels, frames, _ = centres_xy.shape
    gradient_support = torch.zeros_like(support, dtype=torch.float32)
    sizes = _sizes(support, centres_xy, radius)
    grid = (batch * points * levels, triton.cdiv(frames, sizes["FRAMES"]))
    _backward[grid](
        cells_used.contiguous(),
        support.to(cells_used.dtype).contiguous(),
        map_rows.contiguous(),
        sizes_xy.contiguous(),
        centres_xy.contiguous(),
        gradient.contiguous(),
        gradient_cells,
        gradient_support,
        points,
        levels,
        frames,
        num_warps=WARPS,
        PRECISION="ieee" if cells_used.dtype == torch.float32 else "tf32",
        **sizes,
    )
    return gradient_support.to(support.dtype)


@_correlate_backward.register_fake
def _(
    gradient: Tensor,
    cells_used: Tensor,
    support: Tensor,
    map_rows: Tensor,
    sizes_xy: Tensor,
    centres_xy: Tensor,
    radius: int,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(cells_used, dtype=torch.float32), torch.empty_like(support)


def _keep(ctx, inputs, output):
    _, cells_used, support, map_rows, sizes_xy, centres_xy, ctx.radius = inputs
    ctx.save_for_backward(cells_used, support, map_rows, sizes_xy, centres_xy)


def _differentiate(ctx, gradient):
    gradient_cells, gradient_support = _correlate_backward(gradient, *ctx.saved_tensors, ctx.radius)
    return gradient_cells, None, gradient_support, None, None, None, None


correlate_fused.register_autograd(_differentiate, setup_context=_keep)


class _CorrelateInto(torch.autograd.Function):
    """`correlate_fused` whose backward pass adds to a table that many calls share."""

    @staticmethod
    def forward(ctx, turn, table, cells_used, support, map_rows, sizes_xy, centres_xy, radius):
        ctx.save_for_backward(turn, cells_used, support, map_rows, sizes_xy, centres_xy)
        ctx.table, ctx.radius = table, radius
        return correlate_fused(
            cells_used, cells_used, support, map_rows, sizes_xy, centres_xy, radius
        )

    @staticmethod
    def backward(ctx, gradient):
        turn, cells_used, *inputs = ctx.saved_tensors
        sums = ctx.table.add_to(cells_used)
        gradient_support = _add_gradients(sums, gradient, cells_used, *inputs, ctx.radius)
        # The value of `turn`, zero, serves as its gradient.
        return turn, None, None, gradient_support, None, None, None, None


def correlate_into(
    shared: SharedGradient,
    cells_used: Tensor,
    support: Tensor,
    map_rows: Tensor,
    sizes_xy: Tensor,
    centres_xy: Tensor,
    radius: int,
) -> Tensor:
    """See `correlate`; the gradient of the cells goes to the shared table."""
    result: Tensor = _CorrelateInto.apply(
        shared.turn, shared.table, cells_used, support, map_rows, sizes_xy, centres_xy, radius
    )
    return result
