"""Triton kernels that normalize maps, registered as operators that compile can see.

An image's pixels are rows of all its channels. A program serves some channels of every n-th block
of an image's rows; the same programs serve any number of channels, so that a network of many
widths has few kernels to compile. Sums are taken around the first row, so that a large mean costs
no digits, and nothing is added up between programs but in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overt.ops.channels_last import dense, empty_like, lowest
from overt.ops.map_norm.plain import EPS
from overt.ops.norm_sums.kernels import add_parts, store_sums

ROWS, WIDTH = 64, 64  # pixels and channels of a block
TILE = {"ROWS": ROWS, "WIDTH": WIDTH, "num_warps": 4}
TILE_TO_READ = TILE | {"ROWS": ROWS // 2}  # where nothing is written
PROGRAMS = 4096  # enough to fill a large device several times
PARTS_AT_ONCE = 16


@triton.jit
def _program_channels(length, channels, WIDTH: tl.constexpr):
    """The image's first number, the program's channels, and which of them there are."""
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    return image, image * length * channels, channel, channel < channels


@triton.jit
def _by_channel(values, image, channel, channels, in_range):
    """The image's numbers (M, C) of these channels, as one row."""
    return tl.load(values + image * channels + channel, mask=in_range, other=0.0)[None, :]


@triton.jit(do_not_specialize=["length"])
def _moments(x, sums, length, channels, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Sums of x - pivot and of its square."""
    image, first, channel, in_range = _program_channels(length, channels, WIDTH)
    x += first
    pivot = tl.load(x + channel, mask=in_range, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    squares = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for begin in range(tl.program_id(1) * ROWS, length, tl.num_programs(1) * ROWS):
        row = begin + tl.arange(0, ROWS)[:, None]
        inside = (row < length) & in_range[None, :]
        z = tl.load(x + row * channels + channel[None, :], mask=inside, other=0.0)
        step = tl.where(inside, z.to(tl.float32) - pivot, 0.0)
        total += step
        squares += step * step
    store_sums(sums, image, total, squares, channel, channels)


@triton.jit(do_not_specialize=["length", "parts"])
def _statistics(
    x, sums, mean, factor, length, channels, parts,
    EPSILON: tl.constexpr, AT_ONCE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Mean and one over the deviation of each map."""
    image, first, channel, in_range = _program_channels(length, channels, WIDTH)
    total, squares = add_parts(sums, image, parts, channel, channels, AT_ONCE, WIDTH)
    pivot = tl.load(x + first + channel, mask=in_range, other=0.0).to(tl.float32)
    away = total / length
    variance = tl.maximum(squares / length - away * away, 0.0)
    tl.store(mean + image * channels + channel, pivot + away, mask=in_range)
    tl.store(factor + image * channels + channel, tl.rsqrt(variance + EPSILON), mask=in_range)


@triton.jit(do_not_specialize=["length"])
def _values(
    x, mean, factor, residual, result, lowest, length, channels,
    ADD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The normalized numbers, at least `lowest`."""
    image, first, channel, in_range = _program_channels(length, channels, WIDTH)
    x, residual, result = x + first, residual + first, result + first
    middle = _by_channel(mean, image, channel, channels, in_range)
    slope = _by_channel(factor, image, channel, channels, in_range)
    for begin in range(tl.program_id(1) * ROWS, length, tl.num_programs(1) * ROWS):
        row = begin + tl.arange(0, ROWS)[:, None]
        inside = (row < length) & in_range[None, :]
        offset = row * channels + channel[None, :]
        z = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        y = tl.maximum((z - middle) * slope, lowest)
        if ADD:
            y = tl.maximum(y + tl.load(residual + offset, mask=inside, other=0.0), 0.0)
        tl.store(result + offset, y.to(result.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["length"])
def _gradient_sums(
    x, mean, factor, gradient, result, to_residual, sums, lowest, length, channels,
    ADD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient of the normalized numbers, alone and times these numbers.

    Where a residual was added, its gradient is written on the way.
    """
    image, first, channel, in_range = _program_channels(length, channels, WIDTH)
    x, gradient = x + first, gradient + first
    result, to_residual = result + first, to_residual + first
    middle = _by_channel(mean, image, channel, channels, in_range)
    slope = _by_channel(factor, image, channel, channels, in_range)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    tilts = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for begin in range(tl.program_id(1) * ROWS, length, tl.num_programs(1) * ROWS):
        row = begin + tl.arange(0, ROWS)[:, None]
        inside = (row < length) & in_range[None, :]
        offset = row * channels + channel[None, :]
        z = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(gradient + offset, mask=inside, other=0.0)
        if ADD:
            above = tl.load(result + offset, mask=inside, other=0.0) > 0
            dy = tl.where(above, dy, 0.0)
            tl.store(to_residual + offset, dy, mask=inside)
        normal = (z - middle) * slope
        dy = tl.where(normal > lowest, dy.to(tl.float32), 0.0)
        total += dy
        tilts += dy * normal
    store_sums(sums, image, total, tilts, channel, channels)


@triton.jit(do_not_specialize=["length", "parts"])
def _gradient_values(
    x, mean, factor, gradient, sums, result, lowest, length, channels, parts,
    AT_ONCE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient of x: what changes neither mean nor deviation passes."""
    image, first, channel, in_range = _program_channels(length, channels, WIDTH)
    x, gradient, result = x + first, gradient + first, result + first
    middle = _by_channel(mean, image, channel, channels, in_range)
    slope = _by_channel(factor, image, channel, channels, in_range)
    total, tilts = add_parts(sums, image, parts, channel, channels, AT_ONCE, WIDTH)
    level = (total / length)[None, :]
    tilt = (tilts / length)[None, :]
    for begin in range(tl.program_id(1) * ROWS, length, tl.num_programs(1) * ROWS):
        row = begin + tl.arange(0, ROWS)[:, None]
        inside = (row < length) & in_range[None, :]
        offset = row * channels + channel[None, :]
        z = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(gradient + offset, mask=inside, other=0.0).to(tl.float32)
        normal = (z - middle) * slope
        dx = slope * (tl.where(normal > lowest, dy, 0.0) - level - normal * tilt)
        tl.store(result + offset, dx.to(result.dtype.element_ty), mask=inside)


def _grid(x: Tensor) -> tuple[int, int, int]:
    """Programs by image, part of an image and group of channels."""
    images, channels, height, width = x.shape
    groups = triton.cdiv(channels, WIDTH)
    parts = min(triton.cdiv(height * width, ROWS), triton.cdiv(PROGRAMS, images * groups))
    return images, parts, groups


def _new_sums(x: Tensor, grid: tuple[int, int, int]) -> Tensor:
    images, parts, _ = grid
    return torch.empty((images, parts, 2, x.shape[1]), dtype=torch.float32, device=x.device)


@torch.library.custom_op("overt::map_moments", mutates_args=())
def map_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and one over the deviation of each map, (M, C) float32. Without gradient."""
    x = dense(x)
    images, channels, height, width = x.shape
    grid = _grid(x)
    sums = _new_sums(x, grid)
    mean = torch.empty((images, channels), dtype=torch.float32, device=x.device)
    factor = torch.empty_like(mean)
    _moments[grid](x, sums, height * width, channels, **TILE_TO_READ)
    _statistics[(images, 1, grid[2])](
        x, sums, mean, factor, height * width, channels, grid[1],
        EPSILON=EPS, AT_ONCE=PARTS_AT_ONCE, WIDTH=WIDTH, num_warps=1,
    )  # fmt: skip
    return mean, factor


@map_moments.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.new_empty(x.shape[:2], dtype=torch.float32)
    return mean, torch.empty_like(mean)


@torch.library.custom_op("overt::normalized_maps", mutates_args=())
def normalized_maps(
    x: Tensor, mean: Tensor, factor: Tensor, relu: bool, residual: Tensor | None
) -> Tensor:
    """See `normalize_maps`; the moments are those of x, and so is their gradient."""
    x = dense(x)
    _, channels, height, width = x.shape
    result = empty_like(x)
    added = x if residual is None else dense(residual)
    _values[_grid(x)](
        x, mean, factor, added, result, lowest(relu), height * width, channels,
        ADD=residual is not None, **TILE,
    )  # fmt: skip
    return result


@normalized_maps.register_fake
def _(x: Tensor, mean: Tensor, factor: Tensor, relu: bool, residual: Tensor | None) -> Tensor:
    return empty_like(x)


@torch.library.custom_op("overt::normalized_maps_backward", mutates_args=())
def _normalized_maps_backward(
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    factor: Tensor,
    relu: bool,
    result: Tensor | None,  # where a residual was added
) -> tuple[Tensor, Tensor]:
    """The gradients of x and of what came after the sum, which is that of the residual."""
    x, gradient = dense(x), dense(gradient)
    _, channels, height, width = x.shape
    grid = _grid(x)
    sums = _new_sums(x, grid)
    to_residual = gradient.new_empty(()) if result is None else empty_like(gradient)
    common = (lowest(relu), height * width, channels)
    _gradient_sums[grid](
        x, mean, factor, gradient, x if result is None else result, to_residual, sums, *common,
        ADD=result is not None, **TILE,
    )  # fmt: skip
    to_x = empty_like(x)
    _gradient_values[grid](
        x, mean, factor, gradient if result is None else to_residual, sums, to_x, *common, grid[1],
        AT_ONCE=PARTS_AT_ONCE, **TILE,
    )  # fmt: skip
    return to_x, to_residual


@_normalized_maps_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, mean: Tensor, factor: Tensor, relu: bool, result: Tensor | None
) -> tuple[Tensor, Tensor]:
    return empty_like(x), gradient.new_empty(()) if result is None else empty_like(gradient)


def _keep(ctx, inputs, output):
    x, mean, factor, ctx.relu, residual = inputs
    ctx.save_for_backward(x, mean, factor, None if residual is None else output)


def _differentiate(ctx, gradient):
    x, mean, factor, result = ctx.saved_tensors
    to_x, to_residual = _normalized_maps_backward(gradient, x, mean, factor, ctx.relu, result)
    return to_x, None, None, None, None if result is None else to_residual


normalized_maps.register_autograd(_differentiate, setup_context=_keep)
