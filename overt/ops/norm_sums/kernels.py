"""Two sums by channel over the rows of an item, a cloud or an image: each program stores those of
its part, (items, parts, 2, C), and the caller adds the parts up, always in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_sums(sums, item, first, second, channel, channels):
    """What this program, of the parts along axis 1, has added up in two tiles (rows, channels)."""
    part, parts = tl.program_id(1), tl.num_programs(1)
    target = sums + ((item * parts + part) * 2) * channels + channel
    tl.store(target, tl.sum(first, axis=0), mask=channel < channels)
    tl.store(target + channels, tl.sum(second, axis=0), mask=channel < channels)


@triton.jit
def add_parts(sums, item, parts, channel, channels, AT_ONCE: tl.constexpr, WIDTH: tl.constexpr):
    """Both sums of all programs of an item, by channel."""
    first = tl.zeros((AT_ONCE, WIDTH), dtype=tl.float32)
    second = tl.zeros((AT_ONCE, WIDTH), dtype=tl.float32)
    for begin in range(0, parts, AT_ONCE):
        part = begin + tl.arange(0, AT_ONCE)
        inside = (part < parts)[:, None] & (channel < channels)[None, :]
        source = sums + ((item * parts + part[:, None]) * 2) * channels + channel[None, :]
        first += tl.load(source, mask=inside, other=0.0)
        second += tl.load(source + channels, mask=inside, other=0.0)
    return tl.sum(first, axis=0), tl.sum(second, axis=0)
