"""Dropout whose mask is a function of a seed on the device: the same whenever it is computed.

A block that is run again in the backward pass then drops what it dropped before, without the state
of a generator being saved and restored, which a CUDA graph could not record. No mask is ever kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
GOLDEN = 0x9E3779B9  # 2^32 divided by the golden ratio: neighboring sites get distant keys


def _mix(x: Tensor) -> Tensor:
    """Scramble 32-bit words, held in int64 (the finalizer "lowbias32" of Chris Wellons)."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & WORD
    return x ^ (x >> 16)


def random_words(count: int, seed: Tensor, site: int) -> Tensor:
    """`count` words (count,) of 32 random bits in int64; a function of the arguments alone."""
    low = _mix((seed + site * GOLDEN) & WORD)
    high = _mix((low ^ (seed >> 32)) & WORD)
    numbers = torch.arange(count, device=seed.device)
    return _mix((_mix((numbers + low) & WORD) + high) & WORD)


def random_below(shape: torch.Size, rate: float, seed: Tensor, site: int) -> Tensor:
    """True with probability `rate`, a bool tensor of this shape."""
    return (random_words(shape.numel(), seed, site) < round(rate * 2**32)).view(shape)


def dropout_plain(x: Tensor, seed: Tensor, site: int, rate: float) -> Tensor:
    """Zeros with probability `rate`, the rest larger by as much as keeps the mean.

    `seed` () is an int64 on the device of `x`; `site` tells apart uses of one seed.
    """
    dropped = random_below(x.shape, rate, seed, site)
    return torch.where(dropped, 0.0, x * (1 / (1 - rate))).to(x.dtype)
