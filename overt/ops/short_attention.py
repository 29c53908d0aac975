"""Attention within short sequences that are packed one after another, by kernels made for them.

The definition, for any device and type, is `attend` of `overt/nn/attention.py`; the Triton kernels
read query, key and value where one linear layer left them, and leave their gradients likewise.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from overt.ops import HAS_TRITON

TYPES = (torch.float16, torch.bfloat16)
LONGEST = 512  # tokens; longer sequences are better served by several programs for each
SHORT = 128  # tokens; up to here the kernels are faster for equal sequences too
WIDEST = 128  # features of a head
ALIGNMENT = 8  # 16-bit numbers that are read and written at once


def can_attend(qkv: Tensor, bound: int) -> bool:
    """Whether the kernels serve such tensors, in sequences of up to `bound` tokens."""
    width = qkv.shape[-1]
    return (
        HAS_TRITON
        and qkv.is_cuda
        and qkv.dtype in TYPES
        and bound <= LONGEST
        and width <= WIDEST
        and width % ALIGNMENT == 0
    )


def attend_within(qkv: Tensor) -> Tensor:  # (S, L, 3, H, d) to (S, L, H, d)
    """Scaled dot-product attention within sequences of equal length, by the kernels if these are
    short."""
    sequences, length = qkv.shape[:2]
    if length <= SHORT and can_attend(qkv, length):
        offsets = torch.arange(sequences + 1, device=qkv.device, dtype=torch.int32) * length
        result = packed_attention(qkv.flatten(0, 1), offsets, length)
        return torch.unflatten(result, 0, (sequences, -1))
    query, key, value = qkv.transpose(1, 3).unbind(2)  # each (S, H, L, d)
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2)


def packed_attention(
    qkv: Tensor,  # (T, 3, H, d): query, key and value of every token
    offsets: Tensor,  # (S + 1,) int32, where each sequence begins, and the end
    bound: int,  # no sequence is longer
) -> Tensor:
    """Scaled dot-product attention within each sequence, (T, H, d)."""
    from overt.ops.short_attention_kernels import attend_short

    result, _ = attend_short(qkv, offsets, bound)
    return result  # type: ignore[no-any-return]
