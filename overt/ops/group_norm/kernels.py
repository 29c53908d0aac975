"""Triton kernels of group normalization, registered as operators that compile can see.

An image's pixels are rows of all its channels. A program serves whole groups of one image: a slab
of neighboring channels, in tiles of some rows each. It reads its slab twice, first for the sums and
then for the values; the second time it starts at the end, which is still cached. Groups stay apart
in a tile: each has a power of two of lanes, and lanes without a channel are masked.

Sums are taken around the group's mean in the first tile, so that a large mean costs no digits.
Programs share no sums; those of all images are added by torch, in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overt.ops.channels_last import dense, empty_like, lowest

TILE = 8192  # pixels times channels
MIN_WIDTH, MAX_WIDTH = 16, 64  # channels of a slab; 16 of 16 bits are a sector of memory
TILE_PER_WARP = 32 * 16
MAX_WARPS = 16


@triton.jit
def _slab(channels, groups, SIZE: tl.constexpr, LANES: tl.constexpr, AT_ONCE: tl.constexpr):
    """The program's image, the channels of its lanes, and which of them exist, all (WIDTH,)."""
    slabs = tl.cdiv(groups, AT_ONCE)
    image = (tl.program_id(0) // slabs).to(tl.int64)
    slab = tl.program_id(0) % slabs
    lane = tl.arange(0, AT_ONCE * LANES)
    if SIZE == LANES:  # the compiler sees that neighboring lanes are neighbors in memory
        channel = slab * (AT_ONCE * SIZE) + lane
        is_channel = channel < channels
    else:
        group = slab * AT_ONCE + lane // LANES
        channel = group * SIZE + lane % LANES
        is_channel = (lane % LANES < SIZE) & (group < groups)
    return image, channel, is_channel


@triton.jit
def _tile(number, length, channels, channel, is_channel, ROWS: tl.constexpr):
    """Offsets in the image, and which of them exist, (ROWS, WIDTH)."""
    row = number * ROWS + tl.arange(0, ROWS)[:, None]
    return row * channels + channel[None, :], (row < length) & is_channel[None, :]


@triton.jit
def _by_group(values, LANES: tl.constexpr, AT_ONCE: tl.constexpr):
    """The sum over each lane's group, (WIDTH,)."""
    sums = tl.sum(tl.reshape(values, (AT_ONCE, LANES)), axis=1)[:, None]
    return tl.reshape(tl.broadcast_to(sums, (AT_ONCE, LANES)), (AT_ONCE * LANES,))


@triton.jit
def _by_channel(values, channel, is_channel):
    return tl.load(values + channel, mask=is_channel, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["length"])
def _values(
    x, weight, bias, residual, result, mean, factor, eps, lowest, length, channels, groups,
    ADD: tl.constexpr, SIZE: tl.constexpr, LANES: tl.constexpr, AT_ONCE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The result, at least `lowest`; mean and one over the deviation of each channel's group."""
    image, channel, is_channel = _slab(channels, groups, SIZE, LANES, AT_ONCE)
    first = image * length * channels
    x, residual, result = x + first, residual + first, result + first
    tiles = tl.cdiv(length, ROWS)

    offset, inside = _tile(0, length, channels, channel, is_channel, ROWS)
    z = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    pivot = _by_group(tl.sum(z, axis=0), LANES, AT_ONCE) / (tl.minimum(length, ROWS) * SIZE)
    total = tl.zeros((ROWS, AT_ONCE * LANES), dtype=tl.float32)
    squares = tl.zeros((ROWS, AT_ONCE * LANES), dtype=tl.float32)
    for number in range(tiles):
        offset, inside = _tile(number, length, channels, channel, is_channel, ROWS)
        z = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        step = tl.where(inside, z - pivot[None, :], 0.0)
        total += step
        squares += step * step
    away = _by_group(tl.sum(total, axis=0), LANES, AT_ONCE) / (length * SIZE)
    spread = _by_group(tl.sum(squares, axis=0), LANES, AT_ONCE) / (length * SIZE)
    middle = pivot + away
    inverse = tl.rsqrt(tl.maximum(spread - away * away, 0.0) + eps)
    tl.store(mean + image * channels + channel, middle, mask=is_channel)
    tl.store(factor + image * channels + channel, inverse, mask=is_channel)

    slope = inverse * _by_channel(weight, channel, is_channel)
    shift = _by_channel(bias, channel, is_channel)
    for number in range(tiles):
        offset, inside = _tile(tiles - 1 - number, length, channels, channel, is_channel, ROWS)
        z = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        y = (z - middle[None, :]) * slope[None, :] + shift[None, :]
        if ADD:
            y += tl.load(residual + offset, mask=inside, other=0.0).to(tl.float32)
        y = tl.where(y < lowest, lowest, y)  # NaN stays NaN
        tl.store(result + offset, y.to(result.dtype.element_ty), mask=inside)


@triton.jit
def _incoming(gradient, result, y, offset, inside, lowest, ADD: tl.constexpr):
    """The gradient of what ReLU was given: without a residual that is y, with one its sign is that
    of the result."""
    dy = tl.load(gradient + offset, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        y = tl.load(result + offset, mask=inside, other=0.0).to(tl.float32)
    return tl.where(y <= lowest, 0.0, dy)


@triton.jit(do_not_specialize=["length"])
def _gradients(
    x, weight, bias, mean, factor, gradient, result, to_x, to_residual, totals, tilts, lowest,
    length, channels, groups,
    ADD: tl.constexpr, SIZE: tl.constexpr, LANES: tl.constexpr, AT_ONCE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The gradients of x and of the residual; of bias and weight the sums over one image."""
    image, channel, is_channel = _slab(channels, groups, SIZE, LANES, AT_ONCE)
    first = image * length * channels
    x, gradient, result = x + first, gradient + first, result + first
    to_x, to_residual = to_x + first, to_residual + first
    tiles = tl.cdiv(length, ROWS)
    middle = _by_channel(mean + image * channels, channel, is_channel)
    inverse = _by_channel(factor + image * channels, channel, is_channel)
    gain = _by_channel(weight, channel, is_channel)
    shift = _by_channel(bias, channel, is_channel)
    slope = inverse * gain

    total = tl.zeros((ROWS, AT_ONCE * LANES), dtype=tl.float32)
    tilt = tl.zeros((ROWS, AT_ONCE * LANES), dtype=tl.float32)
    for number in range(tiles):
        offset, inside = _tile(number, length, channels, channel, is_channel, ROWS)
        z = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32) - middle[None, :]
        y = z * slope[None, :] + shift[None, :]
        dy = _incoming(gradient, result, y, offset, inside, lowest, ADD)
        total += dy
        tilt += dy * (z * inverse[None, :])
    by_channel, tilt_by_channel = tl.sum(total, axis=0), tl.sum(tilt, axis=0)
    tl.store(totals + image * channels + channel, by_channel, mask=is_channel)
    tl.store(tilts + image * channels + channel, tilt_by_channel, mask=is_channel)

    # What changes neither the mean nor the deviation of a group passes.
    level = _by_group(by_channel * gain, LANES, AT_ONCE) / (length * SIZE)
    lean = _by_group(tilt_by_channel * gain, LANES, AT_ONCE) / (length * SIZE)
    for number in range(tiles):
        offset, inside = _tile(tiles - 1 - number, length, channels, channel, is_channel, ROWS)
        z = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32) - middle[None, :]
        y = z * slope[None, :] + shift[None, :]
        dy = _incoming(gradient, result, y, offset, inside, lowest, ADD)
        if ADD:
            tl.store(to_residual + offset, dy.to(to_residual.dtype.element_ty), mask=inside)
        pulled = level[None, :] + z * inverse[None, :] * lean[None, :]
        dx = inverse[None, :] * (dy * gain[None, :] - pulled)
        tl.store(to_x + offset, dx.to(to_x.dtype.element_ty), mask=inside)


def _launch(x: Tensor, groups: int) -> tuple[tuple[int], dict[str, int]]:
    """The number of programs, and the sizes of their tiles."""
    images, channels, height, width = x.shape
    size = channels // groups
    lanes = triton.next_power_of_2(size)
    rows = triton.next_power_of_2(height * width)
    slab = min(max(TILE // rows, MIN_WIDTH), MAX_WIDTH)  # small maps take wide slabs
    at_once = min(max(slab // lanes, 1), triton.next_power_of_2(groups))
    rows = min(rows, max(TILE // (at_once * lanes), 1))
    warps = min(max(rows * at_once * lanes // TILE_PER_WARP, 1), MAX_WARPS)
    programs = images * triton.cdiv(groups, at_once)
    sizes = {"SIZE": size, "LANES": lanes, "AT_ONCE": at_once, "ROWS": rows, "num_warps": warps}
    return (programs,), sizes


def _by_image(x: Tensor) -> Tensor:
    """A number for each channel of an image, (M, C)."""
    return x.new_empty(x.shape[:2], dtype=torch.float32)


@torch.library.custom_op("overt::group_norm", mutates_args=())
def group_norm_fused(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    relu: bool,
    residual: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `group_norm`; also mean and one over the deviation, (M, C) float32."""
    x = dense(x)
    _, channels, height, width = x.shape
    result, mean, factor = empty_like(x), _by_image(x), _by_image(x)
    added = x if residual is None else dense(residual)
    grid, sizes = _launch(x, groups)
    _values[grid](
        x, weight.contiguous(), bias.contiguous(), added, result, mean, factor, eps, lowest(relu),
        height * width, channels, groups, ADD=residual is not None, **sizes,
    )  # fmt: skip
    return result, mean, factor


@group_norm_fused.register_fake
def _(x, weight, bias, groups, eps, relu, residual):
    return empty_like(x), _by_image(x), _by_image(x)


@torch.library.custom_op("overt::group_norm_backward", mutates_args=())
def _group_norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    factor: Tensor,
    groups: int,
    relu: bool,
    result: Tensor | None,  # where a residual was added before ReLU
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, weight, bias and, where `result` is given, of the residual."""
    x, gradient = dense(x), dense(gradient)
    _, channels, height, width = x.shape
    to_x, totals, tilts = empty_like(x), _by_image(x), _by_image(x)
    to_residual = gradient.new_empty(()) if result is None else empty_like(gradient)
    grid, sizes = _launch(x, groups)
    _gradients[grid](
        x, weight.contiguous(), bias.contiguous(), mean, factor, gradient,
        x if result is None else dense(result), to_x, to_residual, totals, tilts, lowest(relu),
        height * width, channels, groups, ADD=result is not None, **sizes,
    )  # fmt: skip
    return to_x, tilts.sum(0).to(weight.dtype), totals.sum(0).to(bias.dtype), to_residual


@_group_norm_backward.register_fake
def _(gradient, x, weight, bias, mean, factor, groups, relu, result):
    to_residual = gradient.new_empty(()) if result is None else empty_like(gradient)
    return empty_like(x), torch.empty_like(weight), torch.empty_like(bias), to_residual


def _keep(ctx, inputs, output):
    x, weight, bias, ctx.groups, _, ctx.relu, residual = inputs
    result, mean, factor = output
    ctx.residual_dtype = None if residual is None else residual.dtype
    ctx.set_materialize_grads(False)
    kept = result if ctx.relu and residual is not None else None
    ctx.save_for_backward(x, weight, bias, mean, factor, kept)


def _differentiate(ctx, gradient, *_):
    if gradient is None:
        return (None,) * 7
    *saved, result = ctx.saved_tensors
    *gradients, to_residual = _group_norm_backward(gradient, *saved, ctx.groups, ctx.relu, result)
    if ctx.residual_dtype is not None:
        to_residual = (gradient if result is None else to_residual).to(ctx.residual_dtype)
    return (*gradients, None, None, None, None if ctx.residual_dtype is None else to_residual)


group_norm_fused.register_autograd(_differentiate, setup_context=_keep)
