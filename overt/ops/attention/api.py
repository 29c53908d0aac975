"""Scaled dot-product attention: of any tensors, within equal sequences, within packed ones.

Letters: S sequences, T tokens in all, L tokens of the longest, H heads, d features of a head. The
definition, for any device and type, is `attention_plain`; torch has kernels for long sequences. The
Triton kernels serve short ones: they read query, key and value where one linear layer left them,
and leave their gradients likewise.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from overt.ops.attention.packing import Packing
from overt.ops.attention.plain import attention_plain
from overt.ops.dispatch import HALVES, replaces, use_kernels

# With torch 2.11 cuDNN's gradient of a single query in bfloat16 became NaN in the middle of a
# training, while the loss was finite.
WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
SHORT = 128  # tokens; up to here the Triton kernels are faster for equal sequences too


def attention(
    query: Tensor,  # (..., L, d)
    key: Tensor,  # (..., M, d)
    value: Tensor,  # (..., M, d)
    mask: Tensor | None = None,  # (..., L or 1, M) bool: which keys a query sees
    scale: float | None = None,  # of the scores; d ** -0.5
) -> Tensor:
    """`attention_plain`, by torch's kernels where these may run."""
    if replaces("attention", query, key, value):
        return attention_plain(query, key, value, mask, scale)
    if torch.is_grad_enabled() and query.shape[-2] == 1:
        with sdpa_kernel(WITHOUT_CUDNN):
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


def attention_in_layers(*inputs: Tensor) -> AbstractContextManager[None]:
    """A context for layers of torch that attend by themselves, such as its transformers.

    Their queries may be single ones: with a gradient they do without cuDNN.
    """
    if replaces("attention", *inputs):
        return sdpa_kernel(SDPBackend.MATH)
    return sdpa_kernel(WITHOUT_CUDNN) if torch.is_grad_enabled() else nullcontext()


def attend(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing | None = None
) -> Tensor:  # (S, L, H, d), or (T, H, d) with a packing
    """Attention within each sequence; the same shape as `query`."""
    if packing is None:
        mixed = attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        return mixed.transpose(1, 2)
    is_half = query.is_cuda and query.dtype in HALVES
    if is_half and not replaces("attention", query, key, value):
        # Imported here: it brings torch's compiler along, seconds for every loader worker.
        from torch.nn.attention.varlen import varlen_attn

        offsets, bound = packing.offsets, packing.bound
        packed = varlen_attn(query, key, value, offsets, offsets, bound, bound)
        assert isinstance(packed, Tensor)
        return packed
    return attend_padded(query, key, value, packing)


def attend_packed(projected: Tensor, packing: Packing) -> Tensor:
    """`attend` to query, key and value in one tensor: (T, H, d) of (T, 3, H, d)."""
    if can_attend(projected, packing.bound):
        return packed_attention(projected, packing.offsets, packing.bound)
    query, key, value = projected.unbind(-3)
    return attend(query, key, value, packing)


def attend_padded(query: Tensor, key: Tensor, value: Tensor, packing: Packing) -> Tensor:
    """`attend` to packed sequences, each filled up to the longest: (T, H, d)."""
    sequences = packing.visible.shape[0]

    def pad(tokens: Tensor) -> Tensor:  # (T, H, d) to (S, H, L, d)
        empty = tokens.new_zeros(sequences * packing.longest, *tokens.shape[1:])
        padded = empty.index_copy(0, packing.padded_index, tokens)
        return padded.view(sequences, packing.longest, *tokens.shape[1:]).transpose(1, 2)

    mixed = attention(pad(query), pad(key), pad(value), mask=packing.visible)
    return mixed.transpose(1, 2).flatten(0, 1).index_select(0, packing.padded_index)


def attend_within(qkv: Tensor) -> Tensor:  # (S, L, 3, H, d) to (S, L, H, d)
    """Attention within sequences of equal length, by the Triton kernels if these are short."""
    sequences, length = qkv.shape[:2]
    if length <= SHORT and can_attend(qkv, length):
        offsets = torch.arange(sequences + 1, device=qkv.device, dtype=torch.int32) * length
        result = packed_attention(qkv.flatten(0, 1), offsets, length)
        return torch.unflatten(result, 0, (sequences, -1))
    query, key, value = qkv.transpose(1, 3).unbind(2)  # each (S, H, L, d)
    return attention(query, key, value).transpose(1, 2)


def can_attend(qkv: Tensor, bound: int) -> bool:
    """Whether the Triton kernels serve such tensors, in sequences of up to `bound` tokens."""
    return use_kernels("attention", qkv, length=bound, width=qkv.shape[-1])


def packed_attention(
    qkv: Tensor,  # (T, 3, H, d): query, key and value of every token
    offsets: Tensor,  # (S + 1,) int32, where each sequence begins, and the end
    bound: int,  # no sequence is longer
) -> Tensor:
    """Attention within each sequence by the Triton kernels, (T, H, d)."""
    from overt.ops.attention.kernels import attend_short

    result, _ = attend_short(qkv, offsets, bound)
    return result  # type: ignore[no-any-return]
