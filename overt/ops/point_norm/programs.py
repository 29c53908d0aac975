"""Triton programs that normalize points: moments, values, largest values, and gradients.

A cloud's rows are one range: `length` rows each, or, for pairs, from the start of its first center
to that of the next cloud. A program serves every n-th block of a range with all channels. Sums are
taken around the first row of the range, so that a large mean costs no digits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overt.ops.norm_sums.kernels import add_parts, store_sums


@triton.jit
def _range(starts, cloud, length, centers, PAIRS: tl.constexpr):
    if PAIRS:
        first = tl.load(starts + cloud * centers).to(tl.int64)
        last = tl.load(starts + (cloud + 1) * centers).to(tl.int64)
    else:
        first = cloud * length
        last = first + length
    return first, last


@triton.jit
def _swish_slope(y):
    gate = tl.sigmoid(y)
    return gate * (1.0 + y * (1.0 - gate))


@triton.jit
def moments(
    rows,
    weights,
    starts,
    sums,
    length,
    centers,
    channels,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Weighted sums of z - pivot and of its square, by channel."""
    cloud = tl.program_id(0).to(tl.int64)
    part, parts = tl.program_id(1), tl.num_programs(1)
    first, last = _range(starts, cloud, length, centers, PAIRS)
    channel = tl.arange(0, WIDTH)
    in_range = channel < channels
    pivot = tl.load(rows + first * channels + channel, mask=in_range, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    squares = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for begin in range(first + part * ROWS, last, parts * ROWS):
        row = begin + tl.arange(0, ROWS)
        real = row < last
        inside = real[:, None] & in_range[None, :]
        z = tl.load(rows + row[:, None] * channels + channel[None, :], mask=inside, other=0.0)
        step = tl.where(inside, z.to(tl.float32) - pivot[None, :], 0.0)
        if PAIRS:
            weight = tl.load(weights + row, mask=real, other=0.0)[:, None]
            total += weight * step
            squares += weight * step * step
        else:
            total += step
            squares += step * step
    store_sums(sums, cloud, total, squares, channel, channels)


@triton.jit
def _by_group(values, channel, channels, GROUPS: tl.constexpr, LANES: tl.constexpr):
    """The sum over the channels of each channel's group, (WIDTH,)."""
    group = tl.where(channel < channels, channel // (channels // GROUPS), LANES)
    mine = tl.arange(0, LANES)[:, None] == group[None, :]
    sums = tl.sum(tl.where(mine, values[None, :], 0.0), axis=1)  # (LANES,) of groups
    return tl.sum(tl.where(mine, sums[:, None], 0.0), axis=0)


@triton.jit
def statistics(
    rows,
    starts,
    sums,
    constant,
    mean,
    factor,
    drift,
    length,
    centers,
    channels,
    parts,
    stride,
    EPSILON: tl.constexpr,
    PAIRS: tl.constexpr,
    CONSTANT: tl.constexpr,
    GROUPS: tl.constexpr,
    LANES: tl.constexpr,
    AT_ONCE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Mean and one over the deviation of each channel's group, and by channel the normalized mean.

    With a constant, statistics are those of rows + constant, and the mean is less by the constant:
    who subtracts it from a row need not know of the constant.
    """
    cloud = tl.program_id(0).to(tl.int64)
    first, _ = _range(starts, cloud, length, centers, PAIRS)
    channel = tl.arange(0, WIDTH)
    in_range = channel < channels
    total, squares = add_parts(sums, cloud, parts, channel, channels, AT_ONCE, WIDTH)
    pivot = tl.load(rows + first * channels + channel, mask=in_range, other=0.0).to(tl.float32)
    if CONSTANT:
        added = tl.load(constant + cloud * stride + channel, mask=in_range, other=0.0)
        pivot += added
    count = length * 1.0  # rows, padding included
    size = count * (channels // GROUPS)
    middle = _by_group(total + count * pivot, channel, channels, GROUPS, LANES) / size
    away = pivot - middle
    spread = squares + 2.0 * away * total + count * away * away
    variance = _by_group(spread, channel, channels, GROUPS, LANES) / size
    inverse = tl.rsqrt(tl.maximum(variance, 0.0) + EPSILON)
    target = cloud * channels + channel
    tl.store(factor + target, inverse, mask=in_range)
    tl.store(drift + target, (total / count + away) * inverse, mask=in_range)
    if CONSTANT:
        middle -= added
    tl.store(mean + target, middle, mask=in_range)


@triton.jit
def values(
    rows,
    starts,
    mean,
    factor,
    scale,
    shift,
    result,
    length,
    centers,
    channels,
    PAIRS: tl.constexpr,
    SWISH: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    cloud = tl.program_id(0).to(tl.int64)
    part, parts = tl.program_id(1), tl.num_programs(1)
    first, last = _range(starts, cloud, length, centers, PAIRS)
    channel = tl.arange(0, WIDTH)
    in_range = channel < channels
    middle = tl.load(mean + cloud * channels + channel, mask=in_range, other=0.0)
    slope = tl.load(factor + cloud * channels + channel, mask=in_range, other=0.0)
    slope *= tl.load(scale + channel, mask=in_range, other=0.0)
    offset = tl.load(shift + channel, mask=in_range, other=0.0)
    for begin in range(first + part * ROWS, last, parts * ROWS):
        row = begin + tl.arange(0, ROWS)
        inside = (row < last)[:, None] & in_range[None, :]
        address = row[:, None] * channels + channel[None, :]
        z = tl.load(rows + address, mask=inside, other=0.0).to(tl.float32)
        y = (z - middle[None, :]) * slope[None, :] + offset[None, :]
        if SWISH:
            y *= tl.sigmoid(y)
        tl.store(result + address, y.to(result.dtype.element_ty), mask=inside)


@triton.jit
def largest(
    rows,
    starts,
    mean,
    factor,
    scale,
    shift,
    result,
    chosen,
    centers,
    channels,
    WIDTH: tl.constexpr,
):
    """The largest value among the pairs of one center, and which pair has it."""
    center = tl.program_id(0).to(tl.int64)
    cloud = center // centers
    channel = tl.arange(0, WIDTH)
    in_range = channel < channels
    middle = tl.load(mean + cloud * channels + channel, mask=in_range, other=0.0)
    slope = tl.load(factor + cloud * channels + channel, mask=in_range, other=0.0)
    slope *= tl.load(scale + channel, mask=in_range, other=0.0)
    offset = tl.load(shift + channel, mask=in_range, other=0.0)
    best = tl.full((WIDTH,), -float("inf"), dtype=tl.float32)
    owner = tl.full((WIDTH,), -1, dtype=tl.int64)
    first = tl.load(starts + center).to(tl.int64)
    last = tl.load(starts + center + 1).to(tl.int64)
    for pair in range(first, last):
        z = tl.load(rows + pair * channels + channel, mask=in_range, other=0.0)
        y = (z.to(tl.float32) - middle) * slope + offset
        value = y * tl.sigmoid(y)
        better = (value > best) | (owner < 0)  # NaN is passed on, not hidden
        best = tl.where(better, value, best)
        owner = tl.where(better, pair, owner)
    # A neighborhood that was cut off has no value: it is NaN.
    best = tl.where(owner < 0, float("nan"), best)
    target = center * channels + channel
    tl.store(result + target, best.to(result.dtype.element_ty), mask=in_range)
    tl.store(chosen + target, owner.to(tl.int32), mask=in_range)


@triton.jit
def _incoming(
    gradient, chosen, owners, row, real, address, inside, channel, channels, MAX: tl.constexpr
):
    """The gradient of the value of each row; from the maxima, that of the pairs chosen."""
    if MAX:
        owner = tl.load(owners + row, mask=real, other=0).to(tl.int64)
        source = owner[:, None] * channels + channel[None, :]
        is_chosen = tl.load(chosen + source, mask=inside, other=-1) == row[:, None]
        value = tl.load(gradient + source, mask=inside & is_chosen, other=0.0)
    else:
        value = tl.load(gradient + address, mask=inside, other=0.0)
    return value.to(tl.float32)


@triton.jit
def gradient_sums(
    rows,
    gradient,
    chosen,
    owners,
    starts,
    mean,
    factor,
    scale,
    shift,
    sums,
    length,
    centers,
    channels,
    PAIRS: tl.constexpr,
    MAX: tl.constexpr,
    SWISH: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Sums of dy and of dy times the normalized row, by channel; y is what swish is applied to."""
    cloud = tl.program_id(0).to(tl.int64)
    part, parts = tl.program_id(1), tl.num_programs(1)
    first, last = _range(starts, cloud, length, centers, PAIRS)
    channel = tl.arange(0, WIDTH)
    in_range = channel < channels
    middle = tl.load(mean + cloud * channels + channel, mask=in_range, other=0.0)
    inverse = tl.load(factor + cloud * channels + channel, mask=in_range, other=0.0)
    gain = tl.load(scale + channel, mask=in_range, other=0.0)
    offset = tl.load(shift + channel, mask=in_range, other=0.0)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    moment = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for begin in range(first + part * ROWS, last, parts * ROWS):
        row = begin + tl.arange(0, ROWS)
        real = row < last
        inside = real[:, None] & in_range[None, :]
        address = row[:, None] * channels + channel[None, :]
        z = tl.load(rows + address, mask=inside, other=0.0).to(tl.float32)
        normal = (z - middle[None, :]) * inverse[None, :]
        dy = _incoming(gradient, chosen, owners, row, real, address, inside, channel, channels, MAX)
        if SWISH:
            dy *= _swish_slope(normal * gain[None, :] + offset[None, :])
        total += dy
        moment += dy * normal
    store_sums(sums, cloud, total, moment, channel, channels)


@triton.jit
def gradient_statistics(
    sums,
    scale,
    factor,
    drift,
    totals,
    levels,
    constant,
    length,
    channels,
    parts,
    GROUPS: tl.constexpr,
    LANES: tl.constexpr,
    AT_ONCE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Sums over the parts, by channel, and what the group's mean and deviation pass on.

    The gradient of a constant is the sum of that of the rows, and follows from these alone.
    """
    cloud = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, WIDTH)
    in_range = channel < channels
    total, moment = add_parts(sums, cloud, parts, channel, channels, AT_ONCE, WIDTH)
    gain = tl.load(scale + channel, mask=in_range, other=0.0)
    size = length * 1.0 * (channels // GROUPS)
    target = cloud * 2 * channels + channel
    tl.store(totals + target, total, mask=in_range)
    tl.store(totals + target + channels, moment, mask=in_range)
    level = _by_group(total * gain, channel, channels, GROUPS, LANES) / size
    tilt = _by_group(moment * gain, channel, channels, GROUPS, LANES) / size
    tl.store(levels + target, level, mask=in_range)
    tl.store(levels + target + channels, tilt, mask=in_range)
    target = cloud * channels + channel
    inverse = tl.load(factor + target, mask=in_range, other=0.0)
    common = length * (level + tilt * tl.load(drift + target, mask=in_range, other=0.0))
    tl.store(constant + target, inverse * (gain * total - common), mask=in_range)


@triton.jit
def gradient_values(
    rows,
    gradient,
    chosen,
    owners,
    weights,
    starts,
    mean,
    factor,
    scale,
    shift,
    levels,
    result,
    length,
    centers,
    channels,
    PAIRS: tl.constexpr,
    MAX: tl.constexpr,
    SWISH: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    cloud = tl.program_id(0).to(tl.int64)
    part, parts = tl.program_id(1), tl.num_programs(1)
    first, last = _range(starts, cloud, length, centers, PAIRS)
    channel = tl.arange(0, WIDTH)
    in_range = channel < channels
    middle = tl.load(mean + cloud * channels + channel, mask=in_range, other=0.0)
    inverse = tl.load(factor + cloud * channels + channel, mask=in_range, other=0.0)
    gain = tl.load(scale + channel, mask=in_range, other=0.0)
    offset = tl.load(shift + channel, mask=in_range, other=0.0)
    level = tl.load(levels + cloud * 2 * channels + channel, mask=in_range, other=0.0)
    tilt = tl.load(levels + (cloud * 2 + 1) * channels + channel, mask=in_range, other=0.0)
    for begin in range(first + part * ROWS, last, parts * ROWS):
        row = begin + tl.arange(0, ROWS)
        real = row < last
        inside = real[:, None] & in_range[None, :]
        address = row[:, None] * channels + channel[None, :]
        z = tl.load(rows + address, mask=inside, other=0.0).to(tl.float32)
        normal = (z - middle[None, :]) * inverse[None, :]
        dy = _incoming(gradient, chosen, owners, row, real, address, inside, channel, channels, MAX)
        if SWISH:
            dy *= _swish_slope(normal * gain[None, :] + offset[None, :])
        common = level[None, :] + normal * tilt[None, :]
        if PAIRS:
            # A row that stands for many slots moves mean and deviation that much more.
            common *= tl.load(weights + row, mask=real, other=0.0)[:, None]
        dz = inverse[None, :] * (gain[None, :] * dy - common)
        tl.store(result + address, dz.to(result.dtype.element_ty), mask=inside)
