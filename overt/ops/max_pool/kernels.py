"""Triton kernels of max pooling channels last, registered as one operator that compile can see.

What is kept for the backward pass is a byte per window, where torch keeps 8. A program of the
backward pass computes pixels from all windows that contain them, so nothing is added between
programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overt.ops.channels_last import dense

PIXELS = 32  # of a program
MOST_CHANNELS = 64  # of a program; grids have further programs for further channels


@triton.jit
def _forward(
    images,
    result,
    chosen,
    windows,
    channels,
    height,
    width,
    new_height,
    new_width,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    window = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    real = window < windows
    left = (window % new_width) * STRIDE - PADDING
    top = (window // new_width % new_height) * STRIDE - PADDING
    first = window // new_width // new_height * height
    largest = tl.full((PIXELS, CHANNELS), float("-inf"), dtype=tl.float32)
    number = tl.full((PIXELS, CHANNELS), -1, dtype=tl.int32)
    for step in tl.static_range(SIZE * SIZE):
        y = top + step // SIZE
        x = left + step % SIZE
        inside = (real & (y >= 0) & (y < height) & (x >= 0) & (x < width))[:, None]
        inside = inside & (channel < channels)
        address = ((first + y) * width + x)[:, None] * channels + channel
        value = tl.load(images + address, mask=inside, other=float("-inf")).to(tl.float32)
        # Of equal numbers the first; NaN before all others.
        is_larger = inside & ((value > largest) | (value != value) | (number < 0))
        largest = tl.where(is_larger, value, largest)
        number = tl.where(is_larger, step, number)
    address = window[:, None] * channels + channel
    mask = real[:, None] & (channel < channels)
    tl.store(result + address, largest.to(result.dtype.element_ty), mask=mask)
    if chosen is not None:
        tl.store(chosen + address, number.to(tl.uint8), mask=mask)


@triton.jit
def _backward(
    gradient,
    chosen,
    to_images,
    pixels,
    channels,
    height,
    width,
    new_height,
    new_width,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    REACH: tl.constexpr = (SIZE + STRIDE - 1) // STRIDE  # windows along an axis that meet a pixel
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    real = pixel < pixels
    x = pixel % width + PADDING
    y = pixel // width % height + PADDING
    first = pixel // width // height * new_height
    total = tl.zeros((PIXELS, CHANNELS), dtype=tl.float32)
    for step in tl.static_range(REACH * REACH):
        row = y // STRIDE - step // REACH
        column = x // STRIDE - step % REACH
        down = y - row * STRIDE
        across = x - column * STRIDE
        meets = (row >= 0) & (row < new_height) & (down < SIZE)
        meets = meets & (column >= 0) & (column < new_width) & (across < SIZE)
        mask = (real & meets)[:, None] & (channel < channels)
        address = ((first + row) * new_width + column)[:, None] * channels + channel
        number = tl.load(chosen + address, mask=mask, other=255).to(tl.int32)
        mask = mask & (number == (down * SIZE + across)[:, None].to(tl.int32))
        total += tl.load(gradient + address, mask=mask, other=0.0).to(tl.float32)
    mask = real[:, None] & (channel < channels)
    address = pixel[:, None] * channels + channel
    tl.store(to_images + address, total.to(to_images.dtype.element_ty), mask=mask)


def new_side(side: int, size: int, stride: int, padding: int) -> int:
    """Windows along an axis."""
    return (side + 2 * padding - size) // stride + 1


def _grid(maps: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """Programs for pixels and channels of maps (B, C, H, W), and how many of each they compute."""
    batch, channels, height, width = maps.shape
    block = min(MOST_CHANNELS, triton.next_power_of_2(channels))
    programs = (triton.cdiv(batch * height * width, PIXELS), triton.cdiv(channels, block))
    return programs, {"PIXELS": PIXELS, "CHANNELS": block}


@torch.library.custom_op("overt::max_pool", mutates_args=())
def max_pool_fused(
    images: Tensor, size: int, stride: int, padding: int, keeps: bool
) -> tuple[Tensor, Tensor]:
    """See `max_pool`; with `keeps` also the number of each window's largest pixel, in bytes."""
    images = dense(images)
    batch, channels, height, width = images.shape
    sides = (new_side(height, size, stride, padding), new_side(width, size, stride, padding))
    result = images.new_empty((batch, *sides, channels)).permute(0, 3, 1, 2)
    shape = (batch, *sides, channels) if keeps else (0,)
    chosen = images.new_empty(shape, dtype=torch.uint8)
    grid, tile = _grid(result)
    _forward[grid](
        images,
        result,
        chosen if keeps else None,
        batch * sides[0] * sides[1],
        channels,
        height,
        width,
        *sides,
        SIZE=size,
        STRIDE=stride,
        PADDING=padding,
        **tile,
    )
    return result, chosen


@max_pool_fused.register_fake
def _(images: Tensor, size: int, stride: int, padding: int, keeps: bool) -> tuple[Tensor, Tensor]:
    batch, channels, height, width = images.shape
    sides = (new_side(height, size, stride, padding), new_side(width, size, stride, padding))
    result = images.new_empty((batch, *sides, channels)).permute(0, 3, 1, 2)
    shape = (batch, *sides, channels) if keeps else (0,)
    return result, images.new_empty(shape, dtype=torch.uint8)


@torch.library.custom_op("overt::max_pool_backward", mutates_args=())
def _max_pool_backward(
    gradient: Tensor,
    chosen: Tensor,
    height: int,
    width: int,
    size: int,
    stride: int,
    padding: int,
) -> Tensor:
    gradient = dense(gradient)
    batch, channels, *sides = gradient.shape
    to_images = gradient.new_empty((batch, height, width, channels)).permute(0, 3, 1, 2)
    grid, tile = _grid(to_images)
    _backward[grid](
        gradient,
        chosen,
        to_images,
        batch * height * width,
        channels,
        height,
        width,
        *sides,
        SIZE=size,
        STRIDE=stride,
        PADDING=padding,
        **tile,
    )
    return to_images


@_max_pool_backward.register_fake
def _(
    gradient: Tensor,
    chosen: Tensor,
    height: int,
    width: int,
    size: int,
    stride: int,
    padding: int,
) -> Tensor:
    batch, channels = gradient.shape[:2]
    return gradient.new_empty((batch, height, width, channels)).permute(0, 3, 1, 2)


def _keep(ctx, inputs, output):
    images, *ctx.window, _ = inputs
    ctx.sides = images.shape[2:]
    ctx.save_for_backward(output[1])
    ctx.set_materialize_grads(False)  # bytes have none


def _differentiate(ctx, gradient, _):
    (chosen,) = ctx.saved_tensors
    return _max_pool_backward(gradient, chosen, *ctx.sides, *ctx.window), None, None, None, None


max_pool_fused.register_autograd(_differentiate, setup_context=_keep)
