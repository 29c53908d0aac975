"""LBM's attention with fewer operations on a CPU: neighboring linear maps multiplied in advance.

Sampling and projecting are both linear. With many points it is cheaper to project every cell of a
frame and then to sample; with few, to sample and then to project what was sampled. The results are
those of `EntryAttention` and `DeformableAttention` up to rounding. For inference only.

Letters: N points, K candidates of a point, Q = N * K, C channels, H heads, d = C / H, L levels,
P positions per level and head, J entries, h x w cells of a level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from overt.nn.deformable import DeformableAttention
from overt.recipes.lbm.blocks import EntryAttention
from overt.recipes.lbm.cpu_encoder import make_linear

SMALL_MAP = 256  # a level of up to this many cells is read by a matrix product with all of them

Sizes = Sequence[tuple[int, int]]


class Level(NamedTuple):
    """A level of a pyramid; G is H where heads read separate channels, else 1."""

    size: tuple[int, int]
    tokens: Tensor  # (h * w, C)
    image: Tensor  # (G, C / G, h, w)


def make_levels(tokens: Tensor, sizes: Sizes, groups: int = 1) -> list[Level]:
    """Return the pyramid of tokens (h * w, C): means of 1, 2 x 2, 4 x 4, ... cells."""
    levels = []
    for number, (height, width) in enumerate(sizes):
        if number:
            tokens = tokens.view(height, 2, -1).mean(1)
            tokens = tokens.view(height * width, 2, -1).mean(1)
        image = tokens.T.reshape(groups, -1, height, width)
        levels.append(Level((height, width), tokens, image))
    return levels


class FoldedEntryAttention(nn.Module):
    """`EntryAttention` as two linear maps around a softmax: more multiplications, fewer steps."""

    def __init__(self, attention: EntryAttention) -> None:
        super().__init__()
        self.heads = attention.heads
        to_query, to_key, _ = _by_head(attention.in_proj_weight, self.heads)  # (H, d, C) each
        query_bias, _, _ = _by_head(attention.in_proj_bias, self.heads)  # (H, d) each
        scale = 1 / math.sqrt(to_query.shape[1])
        ask = scale * to_key.mT @ to_query  # (H, C, C)
        ask_bias = scale * torch.einsum("hdc,hd->hc", to_key, query_bias)
        self.ask = make_linear(ask.flatten(0, 1), ask_bias.flatten())
        tell, bias = _value_and_output(attention)
        self.tell = make_linear(tell.flatten(1), bias)

    def forward(
        self,
        query: Tensor,  # (N, C)
        entries: Tensor,  # (N, J, C)
        embedding: Tensor | None = None,  # (J, C) added to the entries to make keys of them
        ignore: Tensor | None = None,  # (N, J) bool; no row may ignore all
    ) -> Tensor:
        asked = torch.unflatten(self.ask(query), 1, (self.heads, -1))  # (N, H, C)
        logits = asked @ entries.mT
        if embedding is not None:
            logits = logits + asked @ embedding.T
        if ignore is not None:
            logits = logits.masked_fill(ignore.unsqueeze(1), float("-inf"))
        told: Tensor = self.tell((logits.softmax(dim=-1) @ entries).flatten(1))
        return told


class SingleEntryAttention(nn.Module):
    """`EntryAttention` to one entry, whose weight is one."""

    def __init__(self, attention: EntryAttention) -> None:
        super().__init__()
        tell, bias = _value_and_output(attention)
        self.tell = make_linear(tell.sum(1), bias)

    def forward(self, query: Tensor, entries: Tensor) -> Tensor:
        told: Tensor = self.tell(entries[:, 0])
        return told


class CpuDeformable(nn.Module):
    """`DeformableAttention` of queries that read around several centers each."""

    half_sizes: Tensor  # (L * H * P * 2,) half of the width and height of each position's level
    spread: Tensor  # (2, L * H * P * 2) repeats a center for every position

    def __init__(self, attention: DeformableAttention, sizes: Sizes, few_points: bool) -> None:
        super().__init__()
        self.heads, self.points, self.sizes = attention.heads, attention.points, sizes
        half_sizes = torch.tensor([[width / 2, height / 2] for height, width in sizes])
        positions = self.heads * self.points
        self.register_buffer("half_sizes", half_sizes.repeat(1, positions).flatten())
        # As a matrix product: broadcasting along an axis of two is slow.
        self.register_buffer("spread", torch.eye(2).repeat(1, len(sizes) * positions))
        # Offsets in the coordinates of a grid, -1 to 1, ordered by level.
        shape = (self.heads, len(sizes), self.points, 2)
        offsets = attention.sampling_offsets
        weight = torch.unflatten(offsets.weight.detach(), 0, shape).transpose(0, 1).flatten(0, 3)
        bias = torch.unflatten(offsets.bias.detach(), 0, shape).transpose(0, 1).flatten()
        self.move = make_linear(weight / self.half_sizes.unsqueeze(1), bias / self.half_sizes)
        self.weigh = attention.attention_weights
        self.project = None if few_points else attention.value_proj
        self.tell = attention.output_proj
        self.tell_bias: Tensor | None = None
        if few_points:
            output = _heads(attention.output_proj.weight, 1, self.heads)
            values = _heads(attention.value_proj.weight, 0, self.heads)
            tell = torch.einsum("chd,hde->che", output, values).flatten(1)  # (C, H * C)
            self.tell = make_linear(tell, attention.output_proj.bias)
            bias = _heads(attention.value_proj.bias, 0, self.heads)
            self.tell_bias = nn.Parameter(torch.einsum("chd,hd->hc", output, bias), False)

    def forward(
        self,
        query: Tensor,  # (N, C)
        centers: Tensor,  # (N, K, 2) in -1..1
        levels: Sequence[Level],  # of the features
    ) -> Tensor:
        """Return what the queries read, (N, K, C), without the query itself."""
        count, depth, heads = centers.shape[1], len(self.sizes), self.heads
        # The offsets are those of the point: its candidates differ in their centers.
        grids = self.move(query).unsqueeze(1) + centers @ self.spread  # (N, K, L * H * P * 2)
        weights = self.weigh(query).view(-1, heads, depth * self.points).softmax(-1)
        weights = weights.view(-1, 1, heads, depth, self.points).transpose(2, 3)
        weights = weights.expand(-1, count, -1, -1, -1)  # (N, K, L, H, P)
        told_bias = None
        if self.tell_bias is not None:
            # The bias of the values counts as far as a position lies inside of its level.
            inside = (self.half_sizes + 0.5 - grids.abs() * self.half_sizes).clamp(0, 1)
            inside = inside.view(-1, count, depth, heads, self.points, 2).prod(-1)
            told_bias = (inside * weights).sum(dim=(2, 4)) @ self.tell_bias  # (N, K, C)
        if self.project is not None:
            levels = make_levels(self.project(levels[0].tokens), self.sizes, heads)
        groups = len(levels[0].image)
        grids = grids.view(-1, depth, heads, self.points, 2).permute(1, 2, 0, 3, 4)
        grids = grids.reshape(depth, groups, -1, self.points, 2)
        weights = weights.permute(2, 3, 0, 1, 4).reshape(depth, groups, -1, self.points)
        parts = (
            _read(level, grid, weight)
            for level, grid, weight in zip(levels, grids.unbind(0), weights.unbind(0), strict=True)
        )
        read = next(parts)  # (G, H / G * Q, C / G)
        for part in parts:
            read = read + part
        read = read.reshape(heads, -1, read.shape[-1]).transpose(0, 1)  # (Q, H, C or d)
        told: Tensor = self.tell(read.flatten(1)).view(-1, count, query.shape[1])
        return told if told_bias is None else told + told_bias


def _read(level: Level, grid: Tensor, weights: Tensor) -> Tensor:
    """Sum samples at (G, R, P, 2) with weights (G, R, P); returns (G, R, C / G)."""
    height, width = level.size
    if height * width > SMALL_MAP:
        samples = F.grid_sample(level.image, grid, padding_mode="zeros", align_corners=False)
        return (samples * weights.unsqueeze(1)).sum(-1).mT
    # Position p of a grid is the cell p * length / 2 + (length - 1) / 2; a sample is a sum over all
    # cells with the weight max(0, 1 - distance) along both axes.
    lengths = torch.tensor([width, height], dtype=grid.dtype).unsqueeze(1)
    first = (lengths - 1) / 2 - torch.arange(max(level.size))
    near = (1 - (grid.unsqueeze(-1) * (lengths / 2) + first).abs()).relu()
    columns, rows = near.unbind(3)  # (G, R, P, longer side) each
    rows = rows[..., :height] * weights.unsqueeze(-1)
    cells = (rows.mT @ columns[..., :width]).flatten(2)  # (G, R, h * w)
    return cells @ level.image.flatten(2).mT


def _heads(weight: Tensor, axis: int, *counts: int) -> Tensor:
    return torch.unflatten(weight.detach(), axis, (*counts, -1))


def _by_head(projections: Tensor, heads: int) -> tuple[Tensor, ...]:
    """Split the projections to query, key and value, and each by its heads."""
    return _heads(projections, 0, 3, heads).unbind(0)


def _value_and_output(attention: EntryAttention) -> tuple[Tensor, Tensor]:
    """Multiply both projections: weights (C, H, C) and a bias (C,)."""
    *_, to_value = _by_head(attention.in_proj_weight, attention.heads)
    *_, value_bias = _by_head(attention.in_proj_bias, attention.heads)
    weight = attention.out_proj.weight.detach()
    by_head = _heads(weight, 1, attention.heads)  # (C, H, d)
    bias = attention.out_proj.bias.detach() + weight @ value_bias.flatten()
    return torch.einsum("chd,hde->che", by_head, to_value), bias
