"""Multi-scale deformable attention as a module, with the keys that detection models have for it.

Letters: B batch, Q queries, C channels, H heads, L levels, P points per level, S cells of all of
them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from overt.nn.dropout import SeededDropout
from overt.ops.deformable.api import deformable
from overt.ops.deformable.plain import Sizes


class DeformableAttention(nn.Module):
    """Each query reads `points` points on every level around its reference point (2010.04159).

    The result includes the query: it is `dropout(attention) + query`.
    """

    def __init__(
        self, channels: int, heads: int, levels: int, points: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.dropout = SeededDropout(dropout)
        self.sampling_offsets = nn.Linear(channels, heads * levels * points * 2)
        self.attention_weights = nn.Linear(channels, heads * levels * points)
        self.value_proj = nn.Linear(channels, channels)
        self.output_proj = nn.Linear(channels, channels)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Heads look in different directions, a head's points lie 1, 2, ... cells out.

        From a start at zero all points of a head would coincide and get equal gradients forever.
        """
        angles = torch.arange(self.heads) * (2 * math.pi / self.heads)
        directions = torch.stack([angles.cos(), angles.sin()], dim=-1)  # (H, 2)
        directions = directions / directions.abs().amax(dim=-1, keepdim=True)
        steps = torch.arange(1.0, self.points + 1)
        star = directions[:, None, None] * steps[:, None]  # (H, 1, P, 2)
        self.sampling_offsets.bias.copy_(star.expand(-1, self.levels, -1, -1).flatten())
        nn.init.zeros_(self.sampling_offsets.weight)
        nn.init.zeros_(self.attention_weights.weight)
        nn.init.zeros_(self.attention_weights.bias)
        for projection in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)

    def project(self, tokens: Tensor) -> Tensor:
        """The values (B, S, H, C / H) of tokens (B, S, C): they depend on the frame alone."""
        values: Tensor = self.value_proj(tokens)
        return torch.unflatten(values, -1, (self.heads, -1))

    def offsets_and_logits(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Offsets (B, Q, H, L, P, 2) in cells and logits (B, Q, H, L, P) of a query (B, Q, C)."""
        shape = (self.heads, self.levels, self.points)
        offsets: Tensor = self.sampling_offsets(query)
        logits: Tensor = self.attention_weights(query)
        return torch.unflatten(offsets, -1, (*shape, 2)), torch.unflatten(logits, -1, shape)

    def forward(
        self,
        query: Tensor,  # (B, Q, C)
        values: Tensor,  # (B, S, H, C / H) of `project`
        reference_xy: Tensor,  # (B, Q, L, 2) parts of the image
        sizes: Sizes,
        seed: Tensor | None = None,  # () int64, of what is dropped in training
    ) -> Tensor:
        read = deformable(values, reference_xy, *self.offsets_and_logits(query), sizes).flatten(-2)
        attended: Tensor = self.dropout(self.output_proj(read), seed)
        return attended + query
