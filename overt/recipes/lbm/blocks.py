"""The repeated blocks of LBM: residual MLPs, and attention of one query over few entries.

Letters: R rows (one for each point and lattice), C channels, H heads, J entries a query attends to.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from overt.nn.dropout import SeededDropout
from overt.ops.entry_attention.api import entry_attention


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them; keys `net.0` and `net.3`."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            SeededDropout(dropout),
            nn.Linear(4 * channels, channels),
            SeededDropout(dropout),
        )

    def forward(self, x: Tensor, seed: Tensor | None) -> Tensor:
        widen, bend, drop, narrow, drop_again = self.net
        hidden = drop(bend(widen(x)), seed)
        result: Tensor = drop_again(narrow(hidden), seed)
        return result


class Head(nn.Module):
    """The output MLP, to two numbers; keys `net.0` and `net.3`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        # Index 2 is a dropout of rate zero in the published module.
        self.net = nn.Sequential(
            nn.Linear(channels, channels), nn.GELU(), nn.Identity(), nn.Linear(channels, 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x)
        return result


class EntryAttention(nn.Module):
    """Attention of one query per row over the row's own entries; keys of nn.MultiheadAttention.

    With a single query, the key projection is applied to the query and the value projection after
    the weighted sum. So entries are used as they are: they are not projected again in every frame
    and layer, and no projections are stored for the backward pass.
    """

    def __init__(self, channels: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = SeededDropout(dropout)
        self.in_proj_weight = nn.Parameter(torch.empty(3 * channels, channels))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * channels))
        self.out_proj = nn.Linear(channels, channels)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,  # (R, C)
        entries: Tensor,  # (R, J, C): the values, and without `embedding` the keys
        embedding: Tensor | None = None,  # (J, C) added to the entries to make keys of them
        ignore: Tensor | None = None,  # (R, J) bool; no row may ignore all
        seed: Tensor | None = None,  # () int64, of what is dropped in training
    ) -> Tensor:
        to_query, to_key, to_value = self.in_proj_weight.chunk(3)
        # the key's bias cancels in the softmax
        query_bias, _, value_bias = self.in_proj_bias.chunk(3)
        width = query.shape[-1] // self.heads
        queries = F.linear(query, to_query, query_bias) / math.sqrt(width)
        queries = torch.unflatten(queries, -1, (self.heads, width)).transpose(0, 1)  # (H, R, d)
        queries = queries @ torch.unflatten(to_key, 0, (self.heads, width))  # (H, R, C)
        dropout = self.dropout
        seed = seed if dropout.training else None
        read, weight_sum = entry_attention(  # (H, R, C), (R, H)
            queries, entries, embedding, ignore, seed, dropout.site, dropout.rate
        )
        values = read @ torch.unflatten(to_value, 0, (self.heads, width)).mT.to(read.dtype)
        values = values.transpose(0, 1)  # (R, H, d)
        bias = torch.unflatten(value_bias, 0, (self.heads, width)) * weight_sum.unsqueeze(-1)
        result: Tensor = self.out_proj((values + bias.to(values.dtype)).flatten(1))
        return result


class PostNorm(nn.Module):
    """Modules named X_norm, X_norm2 and X_ffn for each attention X, as in the published keys."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.channels = channels
        self.rate = dropout

    def add_residual(self, name: str) -> None:
        """Add the norms and the MLP that follow the attention `name`."""
        self.add_module(f"{name}_norm", nn.LayerNorm(self.channels))
        self.add_module(f"{name}_norm2", nn.LayerNorm(self.channels))
        self.add_module(f"{name}_ffn", FeedForward(self.channels, self.rate))
        self.add_module(f"{name}_dropout", SeededDropout(self.rate))

    def residual(self, name: str, x: Tensor, update: Tensor, seed: Tensor | None) -> Tensor:
        """Apply the residual norms and the MLP after the attention `name` returned `update`."""
        x = getattr(self, f"{name}_norm")(x + getattr(self, f"{name}_dropout")(update, seed))
        result: Tensor = getattr(self, f"{name}_norm2")(x + getattr(self, f"{name}_ffn")(x, seed))
        return result
