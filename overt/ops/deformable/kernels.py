"""Triton kernels of deformable attention, registered as one operator that compile can see.

One program serves one query and one head: it makes the softmax, reads four cells for each place,
and writes D numbers. Neither locations nor weights nor samples are ever written to memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _softmax_parts(logits, count, BLOCK: tl.constexpr):
    """The largest of `count` logits and the sum of their exponentials."""
    index = tl.arange(0, BLOCK)
    values = tl.load(logits + index, mask=index < count, other=float("-inf")).to(tl.float32)
    largest = tl.max(values, axis=0)
    return largest, tl.sum(tl.exp(values - largest), axis=0)


@triton.jit
def _corner(x, y, width, height, first, CORNER: tl.constexpr):
    """A cell of the four at whole (x, y), a safe one where it lies outside, and if it is inside."""
    x += CORNER % 2
    y += CORNER // 2
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    row = tl.where(inside, y * width + x, 0)
    return first + row, inside


@triton.jit
def _corner_weight(fraction, STEP: tl.constexpr):
    """What the nearer or, a step on, the farther of two neighbors counts."""
    return fraction * STEP + (1.0 - fraction) * (1 - STEP)


@triton.jit
def _forward(
    values,
    reference,
    offsets,
    logits,
    result,
    queries,
    stride_batch,
    stride_cell,
    stride_head,
    SIZES: tl.constexpr,  # height, width and first cell of every level in turn
    HEADS: tl.constexpr,
    LEVELS: tl.constexpr,
    POINTS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_ALL: tl.constexpr,
    BLOCK_POINTS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)  # (b, q, h)
    head = item % HEADS
    query = item // HEADS  # (b, q)
    base = values + (query // queries) * stride_batch + head * stride_head
    own_logits = logits + item * (LEVELS * POINTS)
    largest, total = _softmax_parts(own_logits, LEVELS * POINTS, BLOCK_ALL)
    point = tl.arange(0, BLOCK_POINTS)
    channel = tl.arange(0, BLOCK_CHANNELS)
    real = point < POINTS
    channel_is_real = channel[None, :] < CHANNELS
    sums = tl.zeros((BLOCK_POINTS, BLOCK_CHANNELS), dtype=tl.float32)
    for level in tl.static_range(LEVELS):
        height = SIZES[level * 3]
        width = SIZES[level * 3 + 1]
        first = SIZES[level * 3 + 2]
        column = level * POINTS + point
        logit = tl.load(own_logits + column, mask=real, other=float("-inf")).to(tl.float32)
        weight = tl.exp(logit - largest) / total
        own_offsets = offsets + (item * (LEVELS * POINTS) + column) * 2
        centre = reference + (query * LEVELS + level) * 2
        x = tl.load(centre) * width - 0.5
        y = tl.load(centre + 1) * height - 0.5
        x += tl.load(own_offsets, mask=real, other=0.0).to(tl.float32)
        y += tl.load(own_offsets + 1, mask=real, other=0.0).to(tl.float32)
        # Far outside nothing is read: clamping first keeps the whole number small.
        x = tl.minimum(tl.maximum(x, -2.0), width + 1.0)
        y = tl.minimum(tl.maximum(y, -2.0), height + 1.0)
        floor_x = tl.floor(x)
        floor_y = tl.floor(y)
        fraction_x = x - floor_x
        fraction_y = y - floor_y
        whole_x = floor_x.to(tl.int32)
        whole_y = floor_y.to(tl.int32)
        for corner in tl.static_range(4):
            row, inside = _corner(whole_x, whole_y, width, height, first, corner)
            part = _corner_weight(fraction_x, corner % 2) * _corner_weight(fraction_y, corner // 2)
            read = tl.load(
                base + row[:, None].to(tl.int64) * stride_cell + channel[None, :],
                mask=(inside & real)[:, None] & channel_is_real,
                other=0.0,
            )
            sums += (weight * part)[:, None] * read.to(tl.float32)
    point_total = tl.sum(sums, axis=0)
    tl.store(
        result + item * CHANNELS + channel,
        point_total.to(result.dtype.element_ty),
        mask=channel < CHANNELS,
    )


@triton.jit
def _backward(
    values,
    reference,
    offsets,
    logits,
    result,
    gradient,
    gradient_values,
    gradient_offsets,
    gradient_logits,
    queries,
    cells,
    stride_batch,
    stride_cell,
    stride_head,
    SIZES: tl.constexpr,  # height, width and first cell of every level in turn
    HEADS: tl.constexpr,
    LEVELS: tl.constexpr,
    POINTS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_ALL: tl.constexpr,
    BLOCK_POINTS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)
    head = item % HEADS
    query = item // HEADS
    sample = query // queries
    base = values + sample * stride_batch + head * stride_head
    own_logits = logits + item * (LEVELS * POINTS)
    largest, total = _softmax_parts(own_logits, LEVELS * POINTS, BLOCK_ALL)
    point = tl.arange(0, BLOCK_POINTS)
    channel = tl.arange(0, BLOCK_CHANNELS)
    real = point < POINTS
    channel_is_real = channel[None, :] < CHANNELS
    offset = item * CHANNELS + channel
    incoming = tl.load(gradient + offset, mask=channel < CHANNELS, other=0.0).to(tl.float32)
    output = tl.load(result + offset, mask=channel < CHANNELS, other=0.0).to(tl.float32)
    # What the softmax takes off every weight's gradient: their mean is that of the result.
    mean = tl.sum(incoming * output, axis=0)
    for level in tl.static_range(LEVELS):
        height = SIZES[level * 3]
        width = SIZES[level * 3 + 1]
        first = SIZES[level * 3 + 2]
        column = level * POINTS + point
        logit = tl.load(own_logits + column, mask=real, other=float("-inf")).to(tl.float32)
        weight = tl.exp(logit - largest) / total
        own_offsets = (item * (LEVELS * POINTS) + column) * 2
        centre = reference + (query * LEVELS + level) * 2
        x = tl.load(centre) * width - 0.5
        y = tl.load(centre + 1) * height - 0.5
        x += tl.load(offsets + own_offsets, mask=real, other=0.0).to(tl.float32)
        y += tl.load(offsets + own_offsets + 1, mask=real, other=0.0).to(tl.float32)
        x = tl.minimum(tl.maximum(x, -2.0), width + 1.0)
        y = tl.minimum(tl.maximum(y, -2.0), height + 1.0)
        floor_x = tl.floor(x)
        floor_y = tl.floor(y)
        fraction_x = x - floor_x
        fraction_y = y - floor_y
        whole_x = floor_x.to(tl.int32)
        whole_y = floor_y.to(tl.int32)
        to_weight = tl.zeros((BLOCK_POINTS,), dtype=tl.float32)
        to_x = tl.zeros((BLOCK_POINTS,), dtype=tl.float32)
        to_y = tl.zeros((BLOCK_POINTS,), dtype=tl.float32)
        for corner in tl.static_range(4):
            row, inside = _corner(whole_x, whole_y, width, height, first, corner)
            along_x = _corner_weight(fraction_x, corner % 2)
            along_y = _corner_weight(fraction_y, corner // 2)
            mask = (inside & real)[:, None] & channel_is_real
            read = tl.load(
                base + row[:, None].to(tl.int64) * stride_cell + channel[None, :],
                mask=mask,
                other=0.0,
            )
            product = tl.sum(read.to(tl.float32) * incoming[None, :], axis=1)
            to_weight += along_x * along_y * product
            to_x += along_y * product * (2 * (corner % 2) - 1)
            to_y += along_x * product * (2 * (corner // 2) - 1)
            cell = (sample * cells + row[:, None]) * HEADS + head
            tl.atomic_add(
                gradient_values + cell * CHANNELS + channel[None, :],
                (weight * along_x * along_y)[:, None] * incoming[None, :],
                mask=mask,
                sem="relaxed",
            )
        point_gradient = gradient_offsets + own_offsets
        tl.store(point_gradient, (weight * to_x).to(gradient_offsets.dtype.element_ty), mask=real)
        tl.store(
            point_gradient + 1, (weight * to_y).to(gradient_offsets.dtype.element_ty), mask=real
        )
        tl.store(
            gradient_logits + item * (LEVELS * POINTS) + column,
            (weight * (to_weight - mean)).to(gradient_logits.dtype.element_ty),
            mask=real,
        )


def _launch(
    values: Tensor, offsets: Tensor, sizes: list[int]
) -> tuple[tuple[int], dict[str, int | tuple[int, ...]]]:
    """The grid, and the sizes that both kernels are made for."""
    batch, queries, heads, levels, points, _ = offsets.shape
    channels = values.shape[-1]
    table, first = [], 0
    for height, width in zip(sizes[::2], sizes[1::2], strict=True):
        table += [height, width, first]
        first += height * width
    return (batch * queries * heads,), {
        "SIZES": tuple(table),
        "HEADS": heads,
        "LEVELS": levels,
        "POINTS": points,
        "CHANNELS": channels,
        "BLOCK_ALL": triton.next_power_of_2(levels * points),
        "BLOCK_POINTS": triton.next_power_of_2(points),
        "BLOCK_CHANNELS": triton.next_power_of_2(channels),
        "num_warps": 1,  # on an H200 0.7 of the time of two, 0.9 in the backward pass
    }


def _dense_channels(values: Tensor) -> Tensor:
    return values if values.stride(-1) == 1 else values.contiguous()


@torch.library.custom_op("overt::deformable", mutates_args=())
def deformable_fused(
    values: Tensor, reference_xy: Tensor, offsets: Tensor, logits: Tensor, sizes: list[int]
) -> Tensor:
    """See `deformable`; `sizes` are the heights and widths of the levels in turn."""
    values = _dense_channels(values)
    grid, shape = _launch(values, offsets, sizes)
    result = values.new_empty((*offsets.shape[:3], values.shape[-1]))
    _forward[grid](
        values,
        reference_xy.float().contiguous(),
        offsets.contiguous(),
        logits.contiguous(),
        result,
        offsets.shape[1],
        *values.stride()[:3],
        **shape,
    )
    return result


@deformable_fused.register_fake
def _(
    values: Tensor, reference_xy: Tensor, offsets: Tensor, logits: Tensor, sizes: list[int]
) -> Tensor:
    return values.new_empty((*offsets.shape[:3], values.shape[-1]))


@torch.library.custom_op("overt::deformable_backward", mutates_args=())
def _deformable_backward(
    gradient: Tensor,
    values: Tensor,
    reference_xy: Tensor,
    offsets: Tensor,
    logits: Tensor,
    result: Tensor,
    sizes: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    values = _dense_channels(values)
    grid, shape = _launch(values, offsets, sizes)
    gradient_values = torch.zeros(values.shape, dtype=torch.float32, device=values.device)
    gradient_offsets = torch.empty(offsets.shape, dtype=offsets.dtype, device=offsets.device)
    gradient_logits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    _backward[grid](
        values,
        reference_xy.float().contiguous(),
        offsets.contiguous(),
        logits.contiguous(),
        result,
        gradient.contiguous(),
        gradient_values,
        gradient_offsets,
        gradient_logits,
        offsets.shape[1],
        values.shape[1],
        *values.stride()[:3],
        **shape,
    )
    return gradient_values.to(values.dtype), gradient_offsets, gradient_logits


@_deformable_backward.register_fake
def _(
    gradient: Tensor,
    values: Tensor,
    reference_xy: Tensor,
    offsets: Tensor,
    logits: Tensor,
    result: Tensor,
    sizes: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        values.new_empty(values.shape),
        offsets.new_empty(offsets.shape),
        logits.new_empty(logits.shape),
    )


def _keep(ctx, inputs, output):
    values, reference_xy, offsets, logits, ctx.sizes = inputs
    ctx.save_for_backward(values, reference_xy, offsets, logits, output)


def _differentiate(ctx, gradient):
    values, reference_xy, offsets, logits, result = ctx.saved_tensors
    to_values, to_offsets, to_logits = _deformable_backward(
        gradient, values, reference_xy, offsets, logits, result, ctx.sizes
    )
    to_reference = None
    if ctx.needs_input_grad[1]:
        # A place moves by a cell where its reference moves by one part in width or height.
        moved = to_offsets.float().sum(dim=(2, 4)).unbind(2)  # of every level, (B, Q, 2)
        sizes = zip(ctx.sizes[1::2], ctx.sizes[::2], strict=True)
        scaled = [
            torch.stack([level_sum[..., 0] * width, level_sum[..., 1] * height], dim=-1)
            for level_sum, (width, height) in zip(moved, sizes, strict=True)
        ]
        to_reference = torch.stack(scaled, dim=2).to(reference_xy.dtype)
    return to_values, to_reference, to_offsets, to_logits, None


deformable_fused.register_autograd(_differentiate, setup_context=_keep)
