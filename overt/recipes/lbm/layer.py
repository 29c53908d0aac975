"""One layer of LBM: read the memories of a point, correlate with the frame, refine candidates.

Letters: B clips, N points, M entries of a memory, C channels, P cells of a frame, K candidates
("lattices") of a point, S tokens of all levels. Sections 3.2 and 3.3 of arXiv:2509.16527.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from overt.geometry.sample import interpolation_matrix
from overt.nn.deformable import DeformableAttention
from overt.nn.dropout import SeededDropout
from overt.ops.top_k.api import top_k
from overt.recipes.lbm.backbone import STRIDE
from overt.recipes.lbm.blocks import EntryAttention, PostNorm
from overt.recipes.lbm.pyramid import normalize


class Memory(NamedTuple):
    """Memories of every point from previous frames, oldest first."""

    collision: Tensor  # (B, N, M, C) how the point looked where it was found
    stream: Tensor  # (B, N, M, C) the query that found it
    ignore: Tensor  # (B, N, M) bool: not yet queried then, or not visible


class Found(NamedTuple):
    """Output of a layer for each point."""

    query: Tensor  # (B, N, C)
    correlation: Tensor  # (B, N, P) with every cell of the frame
    points_xy: Tensor  # (B, N, K, 2) centers of the best cells, pixels of the model
    rho: Tensor  # (B, N, K) logits: is the candidate wrong?


class Layer(PostNorm):
    """The repeated block."""

    def __init__(
        self,
        channels: int,
        heads: int,
        sizes: tuple[tuple[int, int], ...],  # (height, width) of every level, in cells
        neighbors: int,
        candidates: int,
        memory_size: int,
        dropout: float,
        mask_drop: float,
    ) -> None:
        super().__init__(channels, dropout)
        self.sizes = sizes
        self.candidates = candidates
        self.memory_size = memory_size
        # Its zeros mark the dropped entries.
        self.forget = SeededDropout(mask_drop)
        self.collision_time_emb = nn.Parameter(torch.empty(1, memory_size + 1, channels))
        self.stream_time_emb = nn.Parameter(torch.empty(1, memory_size + 1, channels))
        for embedding in (self.collision_time_emb, self.stream_time_emb):
            nn.init.trunc_normal_(embedding, std=0.02)
        self.collision_attention = EntryAttention(channels, heads, dropout)
        self.stream_attention = EntryAttention(channels, heads, dropout)
        self.lattice_update = EntryAttention(channels, heads, dropout)
        self.lattice_attention = DeformableAttention(
            channels, heads, len(sizes), neighbors, dropout
        )
        self.corr_conv = nn.Conv2d(len(sizes), 1, 1)
        self.reference_rho = nn.Linear(channels, 1)
        for name in ("collision", "stream", "lattice", "lattice_update"):
            self.add_residual(name)

    def forward(
        self,
        query: Tensor,  # (B, N, C)
        memory: Memory,
        values: Tensor,  # (B, S, H, C / H) of the lattice attention
        guide: Tensor,  # (B, P, C) what a query is compared with in each cell
        seed: Tensor | None = None,  # () int64, of what is dropped in training
    ) -> Found:
        recalled = self.recall(query, memory, seed)
        # Added to every cell equally, the bias has no effect; it exists for the published keys.
        assert self.corr_conv.bias is not None, "made with a bias"
        bias = self.corr_conv.bias.view(1, 1, 1).to(guide.dtype)
        correlation = torch.baddbmm(bias, normalize(recalled).to(guide.dtype), guide.mT)
        points_xy, parts_xy = self.best_cells(correlation)
        batch, points, count, _ = parts_xy.shape
        repeated = recalled.unsqueeze(2).expand(-1, -1, count, -1).flatten(1, 2)
        reference = parts_xy.flatten(1, 2).unsqueeze(2).expand(-1, -1, len(self.sizes), -1)
        read = self.lattice_attention(repeated, values, reference, self.sizes, seed)
        lattice = self.residual("lattice", repeated, read, seed)
        rho = self.reference_rho(lattice).view(batch, points, count)
        flat = recalled.flatten(0, 1)
        chosen = self.lattice_update(flat, lattice.view(batch * points, count, -1), seed=seed)
        updated = self.residual("lattice_update", flat, chosen, seed)
        return Found(torch.unflatten(updated, 0, (batch, points)), correlation, points_xy, rho)

    def recall(self, query: Tensor, memory: Memory, seed: Tensor | None) -> Tensor:
        """Return the query (B, N, C) after attention to both memories.

        A point without any usable entry is unchanged: it attends to all of its entries and the
        result is discarded. So no shape depends on the data, and no softmax row is empty.
        """
        ignore = memory.ignore
        if seed is not None:
            ignore = ignore | (self.forget(torch.ones_like(ignore, dtype=torch.float32), seed) == 0)
        ignore = ignore.flatten(0, 1)  # (B * N, M)
        empty = ignore.all(dim=-1, keepdim=True)
        ignore = ignore & ~empty
        before = query.flatten(0, 1)
        recalled = before
        for name, entries in (("collision", memory.collision), ("stream", memory.stream)):
            rows = self.time_embedding(name, entries.shape[2])
            queries = recalled + rows[-1]
            attention = getattr(self, f"{name}_attention")
            update = attention(queries, entries.flatten(0, 1), rows[:-1], ignore, seed)
            recalled = self.residual(name, queries, update, seed)
        return torch.unflatten(torch.where(empty, before, recalled), 0, query.shape[:2])

    def time_embedding(self, name: str, memory_size: int) -> Tensor:
        """Return (memory_size + 1, C): all trained rows but the last are interpolated."""
        rows: Tensor = getattr(self, f"{name}_time_emb")[0]
        if memory_size == self.memory_size:
            return rows
        stretch = interpolation_matrix(self.memory_size, memory_size, rows)
        return torch.cat([stretch @ rows[:-1], rows[-1:]])

    def best_cells(self, correlation: Tensor) -> tuple[Tensor, Tensor]:
        """Return centers of the best cells (B, N, K, 2), in pixels and image fractions."""
        height, width = self.sizes[0]
        scores = correlation.detach()
        if self.candidates == 1:
            cells = scores.argmax(dim=-1, keepdim=True)
        else:
            cells = top_k(scores, self.candidates)
        row = torch.div(cells, width, rounding_mode="floor")
        column = cells - row * width
        positions = torch.stack([column, row], dim=-1).float() + 0.5
        parts_xy = torch.stack([positions[..., 0] / width, positions[..., 1] / height], dim=-1)
        return positions * STRIDE, parts_xy
