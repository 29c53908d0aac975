"""Self-attention layers over equal sequences, and over sequences of any length packed together.

Shapes: S sequences, T tokens in all, L tokens of the longest, H heads, d features of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.fp8 import Fp8Linear
from overt.ops.attention.api import attend, attend_packed
from overt.ops.attention.packing import Packing
from overt.ops.dispatch import compute_type
from overt.ops.gelu import gelu, largest_gelu, tanh_gelu
from overt.ops.linear_gelu.api import linear_gelu

BLOCKS_PER_CHAIN = 4  # longer chains take longer to compile


class Attention(nn.Module):
    """Multi-head self-attention with timm's names: `qkv` and `proj`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        assert width % heads == 0, "width is not a multiple of heads"
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(
        self, tokens: Tensor, packing: Packing | None = None, rotation: Tensor | None = None
    ) -> Tensor:
        projected = self.qkv(tokens).view(*tokens.shape[:-1], 3, self.heads, -1)
        if packing is not None and rotation is None:
            return self.proj(attend_packed(projected, packing).flatten(-2))  # type: ignore[no-any-return]
        query, key, value = projected.unbind(-3)  # (..., H, d)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        return self.proj(attend(query, key, value, packing).flatten(-2))  # type: ignore[no-any-return]

    def weights(self, tokens: Tensor, rotation: Tensor | None = None) -> Tensor:
        """How much each token (row) attends to each, (S, H, L, L), of tokens (S, L, D)."""
        projected = self.qkv(tokens).view(*tokens.shape[:-1], 3, self.heads, -1)
        query, key, _ = projected.unbind(-3)  # (S, L, H, d)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        query, key = query.transpose(1, 2), key.transpose(1, 2)  # (S, H, L, d)
        products = (query * query.shape[-1] ** -0.5) @ key.transpose(2, 3)
        weights: Tensor = products.float().softmax(-1)
        return weights


def rotate(vectors: Tensor, rotation: Tensor) -> Tensor:
    """Rotate neighboring pairs of features: (..., H, d) by the angles of (..., 2, d / 2)."""
    cosine, sine = rotation.to(vectors.dtype).unsqueeze(-3).unbind(-2)  # (..., 1, d / 2)
    even, odd = vectors[..., 0::2], vectors[..., 1::2]
    pairs = [even * cosine - odd * sine, even * sine + odd * cosine]
    return torch.stack(pairs, dim=-1).flatten(-2)


class Mlp(nn.Module):
    """Two layers with a GELU between them, with timm's names.

    The GELU is exact. In bfloat16 and without gradient, as in a frozen or a target encoder, it is
    its tanh form, which one kernel computes with the first layer: the two differ by less than 5e-4,
    and bfloat16 rounds off up to 4e-3 of a number near 1. Of weights in 8-bit floats it is the tanh
    form too, compiled with the rounding.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1: nn.Linear | Fp8Linear = nn.Linear(width, hidden)
        self.fc2: nn.Linear | Fp8Linear = nn.Linear(hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        if isinstance(self.fc1, Fp8Linear):
            hidden = self.fc1(tokens)
            return self.fc2(tanh_gelu(hidden), largest_gelu(hidden))  # type: ignore[no-any-return]
        if compute_type(tokens) == torch.bfloat16 and not torch.is_grad_enabled():
            hidden = linear_gelu(tokens, self.fc1.weight, self.fc1.bias)
            return self.fc2(hidden)  # type: ignore[no-any-return]
        return self.fc2(gelu(self.fc1(tokens)))  # type: ignore[no-any-return]


class LayerScale(nn.Module):
    """One learned factor per feature of a residual branch."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), start))

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens * self.gamma


class DropPath(nn.Module):
    """In training, leaves out a residual branch for whole sequences, with this probability."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, branch: Tensor, packing: Packing | None) -> Tensor:
        if not self.training or self.probability == 0.0:
            return branch
        keep_probability = 1.0 - self.probability
        sequences = len(branch) if packing is None else packing.visible.shape[0]
        factor = branch.new_empty(sequences).bernoulli_(keep_probability) / keep_probability
        if packing is None:
            return branch * factor[:, None, None]
        return branch * factor[packing.padded_index // packing.longest, None]


class Block(nn.Module):
    """A pre-norm transformer block with timm's names."""

    def __init__(
        self,
        width: int,
        heads: int,
        mlp_ratio: float = 4.0,
        norm_eps: float = 1e-6,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, norm_eps)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, norm_eps)
        self.mlp = Mlp(width, round(width * mlp_ratio))
        self.ls1: nn.Module = nn.Identity()
        self.ls2: nn.Module = nn.Identity()
        if layer_scale is not None:
            self.ls1, self.ls2 = LayerScale(width, layer_scale), LayerScale(width, layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(
        self, tokens: Tensor, packing: Packing | None = None, rotation: Tensor | None = None
    ) -> Tensor:
        """Tokens (S, L, D), or (T, D) with a packing; the same shape."""
        mixed: Tensor = self.ls1(self.attn(self.norm1(tokens), packing, rotation))
        tokens = tokens + self.drop_path(mixed, packing)
        mixed = self.ls2(self.mlp(self.norm2(tokens)))
        dropped: Tensor = self.drop_path(mixed, packing)
        return tokens + dropped


class Chain(nn.Module):
    """A few blocks one after another: compiled as one, they cost the host a single call.

    The blocks belong to somebody else, in whose state dict they stand; a chain has none.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = tuple(blocks)  # a tuple, so that they are not registered twice

    def forward(self, tokens: Tensor, *further: Any, **options: Any) -> Tensor:
        for block in self.parts:
            tokens = block(tokens, *further, **options)
        return tokens


def in_chains(blocks: nn.ModuleList) -> nn.ModuleList:
    """The blocks in chains of equal length, as far as their number allows."""
    return nn.ModuleList(
        Chain(list(blocks)[first : first + BLOCKS_PER_CHAIN])
        for first in range(0, len(blocks), BLOCKS_PER_CHAIN)
    )
