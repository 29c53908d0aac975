"""Triton kernels of `jitter_plain`: two launches.

The mean gray of a frame is needed halfway, for its contrast: one kernel adds it up, in whole
numbers and so in any order, and another changes the colors. n frames, P operators of each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# As numbered in `OPERATORS`.
CONTRAST, SATURATION, HUE = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
BLOCK = 1024


@triton.jit
def _gray(red, green, blue):
    return tl.floor((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536)


@triton.jit
def _away_from(base, channel, factor):
    return tl.floor(tl.minimum(tl.maximum((channel - base) * factor + base, 0), 255))


@triton.jit
def _turned(sixth, start, chroma, value):
    hue = sixth + start
    hue -= 6 * tl.floor(hue / 6)
    fraction = tl.minimum(tl.maximum(tl.minimum(hue, 4 - hue), 0), 1)
    return tl.floor(value - fraction * chroma + 0.5)


@triton.jit
def _change(operator, amount, mean, red, green, blue):
    """The colors of pixels after one operator; what each does says the definition."""
    if operator == HUE:
        value = tl.maximum(red, tl.maximum(green, blue))
        chroma = value - tl.minimum(red, tl.minimum(green, blue))
        is_red = value == red
        is_green = value == green
        sixth = tl.where(is_red, green - blue, tl.where(is_green, blue - red, red - green))
        sixth = sixth / tl.maximum(chroma, 1)
        sixth += tl.where(is_red, 0.0, tl.where(is_green, 2.0, 4.0))
        red = _turned(sixth, 5 + 6 * amount, chroma, value)
        green = _turned(sixth, 3 + 6 * amount, chroma, value)
        blue = _turned(sixth, 1 + 6 * amount, chroma, value)
    else:
        base = tl.where(operator == CONTRAST, mean, 0.0)
        base = tl.where(operator == SATURATION, _gray(red, green, blue), base)
        red = _away_from(base, red, amount)
        green = _away_from(base, green, amount)
        blue = _away_from(base, blue, amount)
    return red, green, blue


@triton.jit
def _load(frames, pixels, BLOCK: tl.constexpr):
    """The program's pixels: where red is, which there are, and the three channels."""
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < pixels
    offset = tl.program_id(1).to(tl.int64) * 3 * pixels + pixel
    red = tl.load(frames + offset, mask=inside, other=0).to(tl.float32)
    green = tl.load(frames + offset + pixels, mask=inside, other=0).to(tl.float32)
    blue = tl.load(frames + offset + 2 * pixels, mask=inside, other=0).to(tl.float32)
    return offset, inside, red, green, blue


@triton.jit
def _sum_grays(frames, operators, amounts, sums, pixels, SLOTS: tl.constexpr, BLOCK: tl.constexpr):
    """Add up the gray of each frame as it is when its contrast is changed."""
    _, inside, red, green, blue = _load(frames, pixels, BLOCK)
    frame = tl.program_id(1)
    before = True
    for slot in tl.static_range(SLOTS):
        operator = tl.load(operators + frame * SLOTS + slot)
        amount = tl.load(amounts + frame * SLOTS + slot)
        before = before & (operator != CONTRAST)
        if before:
            red, green, blue = _change(operator, amount, 0.0, red, green, blue)
    grays = tl.where(inside, _gray(red, green, blue), 0.0).to(tl.int64)
    tl.atomic_add(sums + frame, tl.sum(grays))


@triton.jit
def _recolor(
    frames, operators, amounts, sums, result, pixels, SLOTS: tl.constexpr, BLOCK: tl.constexpr
):
    pixel, inside, red, green, blue = _load(frames, pixels, BLOCK)
    frame = tl.program_id(1)
    mean = tl.floor(tl.load(sums + frame).to(tl.float32) / pixels + 0.5)
    for slot in tl.static_range(SLOTS):
        operator = tl.load(operators + frame * SLOTS + slot)
        amount = tl.load(amounts + frame * SLOTS + slot)
        red, green, blue = _change(operator, amount, mean, red, green, blue)
    tl.store(result + pixel, red.to(tl.int32).to(tl.uint8), mask=inside)
    tl.store(result + pixel + pixels, green.to(tl.int32).to(tl.uint8), mask=inside)
    tl.store(result + pixel + 2 * pixels, blue.to(tl.int32).to(tl.uint8), mask=inside)


def jitter_fused(frames: Tensor, operators: Tensor, amounts: Tensor) -> Tensor:
    """Frames (n, 3, H, W) uint8 after `operators` (n, P), whole numbers, by `amounts` (n, P)."""
    frames = frames.contiguous()
    count, pixels = len(frames), frames.shape[2] * frames.shape[3]
    sums = torch.zeros(count, dtype=torch.int64, device=frames.device)
    result = torch.empty_like(frames)
    grid = (triton.cdiv(pixels, BLOCK), count)
    inputs = (frames, operators, amounts, sums)
    sizes = {"SLOTS": operators.shape[1], "BLOCK": BLOCK}
    _sum_grays[grid](*inputs, pixels, **sizes)
    _recolor[grid](*inputs, result, pixels, **sizes)
    return result
