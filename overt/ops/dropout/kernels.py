"""Triton kernel of dropout by a seed, registered as one operator that compile can see."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overt.ops.dropout.plain import GOLDEN

BLOCK = 1024


@triton.jit
def _mix(x):
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


@triton.jit
def words_at(number, seed, key):
    """The random words of `plain.py` at these indices, int64; `seed` is a pointer."""
    seed_value = tl.load(seed)
    low = _mix((seed_value + key) & 0xFFFFFFFF)
    high = _mix((low ^ (seed_value >> 32)) & 0xFFFFFFFF)
    return _mix((_mix((number + low) & 0xFFFFFFFF) + high) & 0xFFFFFFFF)


@triton.jit(do_not_specialize=["key", "bound"])
def _drop(values, seed, result, key, bound, scale, count, SIZE: tl.constexpr):
    number = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    real = number < count
    word = words_at(number, seed, key)
    value = tl.load(values + number, mask=real, other=0.0).to(tl.float32)
    kept = tl.where(word < bound, 0.0, value * scale)
    tl.store(result + number, kept.to(result.dtype.element_ty), mask=real)


@torch.library.custom_op("overt::dropout", mutates_args=())
def dropout_fused(x: Tensor, seed: Tensor, site: int, rate: float) -> Tensor:
    """See `dropout`."""
    x = x.contiguous()
    result = torch.empty_like(x)
    count = x.numel()
    _drop[(triton.cdiv(count, BLOCK),)](
        x, seed, result, site * GOLDEN, round(rate * 2**32), 1 / (1 - rate), count, SIZE=BLOCK
    )
    return result


@dropout_fused.register_fake
def _(x: Tensor, seed: Tensor, site: int, rate: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep(ctx, inputs, output):
    _, seed, ctx.site, ctx.rate = inputs
    ctx.save_for_backward(seed)


def _differentiate(ctx, gradient):
    (seed,) = ctx.saved_tensors
    return dropout_fused(gradient, seed, ctx.site, ctx.rate), None, None, None


dropout_fused.register_autograd(_differentiate, setup_context=_keep)
