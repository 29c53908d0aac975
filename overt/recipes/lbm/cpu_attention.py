"""LBM's attention with fewer operations on a CPU: neighboring linear maps multiplied in advance.

Sampling and projecting are both linear. With many points it is cheaper to project every cell of a
frame and then to sample; with few, to sample and then to project what was sampled. The results are
those of `EntryAttention` and `DeformableAttention` up to rounding. For inference only.

Letters: N points, K candidates of a point, Q = N * K, C channels, H heads, d = C / H, L levels,
P positions per level and head, J entries, h x w cells of a level.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from overt.nn.deformable import DeformableAttention
from overt.recipes.lbm.blocks import EntryAttention
from overt.recipes.lbm.cpu_encoder import make_linear

# A level of up to this many cells is read by a matrix product with all of them, a larger one by
# gathering four rows per position.
SMALL_MAP = 1024
SMALL_PROJECTED_MAP = 256  # the same for many points, where GridSample is faster than rows

Sizes = Sequence[tuple[int, int]]


class Pyramid(NamedTuple):
    """The levels of a frame, finest first, those of one kind one after the other."""

    large: Tensor  # (S, C) of the levels with more than SMALL_MAP cells
    small: Tensor  # (S, C) of all others


def count_large(sizes: Sizes) -> int:
    """Return how many levels have more than SMALL_MAP cells; they come first."""
    return sum(height * width > SMALL_MAP for height, width in sizes)


def make_pyramid(tokens: Tensor, sizes: Sizes) -> Pyramid:
    """Return the pyramid of tokens (h * w, C): means of 1, 2 x 2, 4 x 4, ... cells."""
    levels = [tokens]
    for size in sizes[1:]:
        levels.append(halve(levels[-1], size))
    large = count_large(sizes)
    return Pyramid(*(torch.cat([tokens[:0], *part]) for part in (levels[:large], levels[large:])))


def halve(tokens: Tensor, size: tuple[int, int]) -> Tensor:
    """Return means of 2 x 2 cells (h * w, C), h x w of them."""
    height, width = size
    # Neighbors in a row as a product: adding the ones to the others is slow.
    pairs = torch.eye(width).repeat_interleave(2, dim=1) / 4  # (w, 2 * w)
    rows = tokens.view(height, 2, -1).sum(1).view(height, 2 * width, -1)
    return (pairs @ rows).flatten(0, 1)


class Level(NamedTuple):
    """A level of a pyramid; G = H: heads read separate channels."""

    size: tuple[int, int]
    tokens: Tensor  # (h * w, C)
    image: Tensor  # (G, C / G, h, w)


def _make_levels(tokens: Tensor, sizes: Sizes, groups: int) -> list[Level]:
    """Return the pyramid of tokens (h * w, C): means of 1, 2 x 2, 4 x 4, ... cells."""
    levels = []
    for number, (height, width) in enumerate(sizes):
        if number:
            tokens = halve(tokens, (height, width))
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


class Corners(nn.Module):
    """The four cells around positions, in a table with one level after the other."""

    last: Tensor  # (2, 1, F * P) the last cell but one along each axis, of the F levels
    steps: Tensor  # (F * P,) cells between two rows of a position's level
    starts: Tensor  # (F * P,) where the level begins in the table
    row_lengths: Tensor  # (F * P,) the steps as integers

    def __init__(self, sizes: Sizes, points: int) -> None:
        super().__init__()
        lengths = torch.tensor([[width, height] for height, width in sizes]).view(-1, 2)
        counts = lengths.prod(1)
        starts = counts.cumsum(0) - counts
        lengths = lengths.repeat_interleave(points, dim=0)  # (F * P, 2)
        self.register_buffer("last", (lengths - 2).T.unsqueeze(1).float())
        self.register_buffer("steps", lengths[:, 0].float())
        self.register_buffer("starts", starts.repeat_interleave(points))
        self.register_buffer("row_lengths", lengths[:, 0].clone())

    def forward(self, cells: Tensor, weights: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return rows of the table and what each counts, (N, K, H, 4 * F * P).

        cells: (N, K, 2, H, F * P), x and y; weights: (N or 1, 1, H, F * P).
        """
        # Two neighbors along each axis, inside of the map; a cell farther away weighs nothing.
        # Corners stand side by side: broadcasting along an axis of two is slow.
        first = torch.minimum(cells.floor().clamp(min=0), self.last)
        past = cells - first
        column, row = (1 - past.abs()).relu().unbind(2)
        next_column, next_row = (1 - (past - 1).abs()).relu().unbind(2)
        row, next_row = row * weights, next_row * weights
        products = (row * column, row * next_column, next_row * column, next_row * next_column)
        x, y = first.unbind(2)
        corner = (y * self.steps + x).long() + self.starts
        below = corner + self.row_lengths
        rows = torch.cat([corner, corner + 1, below, below + 1], dim=-1)
        return rows, torch.cat(products, dim=-1)


class CpuDeformable(nn.Module):
    """`DeformableAttention`s of the same queries around the same centers, all heads together.

    A sample is a sum over cells with the weight max(0, 1 - distance) along both axes.
    """

    spread: Tensor  # (2, 2 * H * L * P) turns centers into cells of each position's level
    middles: Tensor  # (2, 1, L * P) the middle of each position's level, in cells
    by_level: Tensor  # (D, sum of sides) ones where a column belongs to one of the D small levels
    cells: Tensor  # (sum of sides,) minus the number of the cell that a column is

    def __init__(self, attentions: Sequence[DeformableAttention], sizes: Sizes) -> None:
        super().__init__()
        depth, large = len(sizes), count_large(sizes)
        points = attentions[0].points
        self.points, self.sizes, self.large = points, sizes, large
        self.heads = heads = sum(attention.heads for attention in attentions)
        # Positions of a head: those on large levels by level, the others by position.
        order = torch.arange(depth * points).view(depth, points)
        order = torch.cat([order[:large].flatten(), order[large:].T.flatten()])

        def ordered(parts: Iterable[Tensor], *last: int) -> Tensor:
            """Join (H * L * P * last, ...) of all attentions and reorder the positions."""
            joined = torch.cat([part.detach() for part in parts])
            return torch.unflatten(joined, 0, (heads, depth * points, *last))[:, order]

        lengths = torch.tensor([[width, height] for height, width in sizes], dtype=torch.float32)
        middles = ((lengths - 1) / 2).repeat_interleave(points, dim=0)[order]  # (L * P, 2)
        self.register_buffer("middles", middles.T.unsqueeze(1))
        halves = (lengths / 2).repeat_interleave(points, dim=0)[order].T
        spread = torch.zeros(2, 2, heads, depth * points)
        spread[0, 0], spread[1, 1] = halves
        self.register_buffer("spread", spread.flatten(1))
        weight = ordered((each.sampling_offsets.weight for each in attentions), 2)
        bias = ordered((each.sampling_offsets.bias for each in attentions), 2) + middles
        self.move = make_linear(weight.movedim(2, 0).flatten(0, 2), bias.movedim(2, 0).flatten())
        self.weigh = make_linear(
            ordered(each.attention_weights.weight for each in attentions).flatten(0, 1),
            ordered(each.attention_weights.bias for each in attentions).flatten(),
        )
        self._prepare_levels(lengths)
        # Sampling is linear: values are projected together with the results.
        self.tells = nn.ModuleList()
        biases = []
        for each in attentions:
            weight, bias = each.output_proj.weight.detach(), each.output_proj.bias
            by_head = _heads(weight, 1, each.heads)  # (C, H, d)
            values = _heads(each.value_proj.weight, 0, each.heads)
            value_bias = _heads(each.value_proj.bias, 0, each.heads)
            biases.append(torch.einsum("chd,hd->hc", by_head, value_bias))
            weight = torch.einsum("chd,hde->che", by_head, values).flatten(1)
            self.tells.append(make_linear(weight, bias))
        self.tell_biases = nn.ParameterList(
            nn.Parameter(bias, requires_grad=False) for bias in biases
        )

    def forward(
        self,
        query: Tensor,  # (N, C)
        centers: Tensor,  # (N, K, 2) in -1..1
        pyramid: Pyramid,  # of the features
    ) -> list[Tensor]:
        """Return what each attention reads, (N, K, C), without the query itself."""
        count, channels = centers.shape[1], query.shape[1]
        positions = self.middles.shape[2]
        # The offsets are those of the point: its candidates differ in their centers.
        cells = self.move(query).unsqueeze(1) + centers @ self.spread
        cells = cells.view(-1, count, 2, self.heads, positions)
        weights = self.weigh(query).view(-1, 1, self.heads, positions).softmax(-1)
        sides = [self.large * self.points, positions - self.large * self.points]
        parts = zip(torch.split(cells, sides, -1), torch.split(weights, sides, -1), strict=True)
        reads = (self._gather, self._multiply)
        read = None
        for (part, weight), how, table in zip(parts, reads, pyramid, strict=True):
            if part.shape[-1] > 0:
                sampled = how(part, weight, table)
                read = sampled if read is None else read + sampled
        assert read is not None, "there is at least one level"
        read = read.view(-1, len(self.tells), self.heads // len(self.tells) * read.shape[-1])
        told = [
            tell(rows).view(-1, count, channels)
            for tell, rows in zip(self.tells, read.unbind(1), strict=True)
        ]
        # The bias of the values counts as far as a position lies inside of its level.
        inside = (self.middles + 1 - (cells - self.middles).abs()).clamp(0, 1).prod(2)
        sums = (inside * weights).sum(-1).chunk(len(told), -1)  # (N, K, heads of each)
        return [
            part + total @ bias
            for part, total, bias in zip(told, sums, self.tell_biases, strict=True)
        ]

    def _gather(self, cells: Tensor, weights: Tensor, table: Tensor) -> Tensor:
        """Read large levels at (N, K, 2, H, F * P); returns (N * K * H, C)."""
        rows, by_row = self.corners(cells, weights)
        gathered = table.index_select(0, rows.flatten()).view(-1, rows.shape[-1], table.shape[1])
        read: Tensor = by_row.flatten(0, 2).unsqueeze(1) @ gathered
        return read.flatten(0, 1)

    def _multiply(self, cells: Tensor, weights: Tensor, table: Tensor) -> Tensor:
        """Read small levels at (N, K, 2, H, P * D); returns (N * K * H, C)."""
        small = self.sizes[self.large :]
        columns, rows = (
            (1 - torch.addmm(self.cells, axis.reshape(-1, len(small)), self.by_level).abs())
            .relu()
            .view(*axis.shape[:-1], self.points, -1)  # (N, K, H, P, sides)
            for axis in cells.unbind(2)
        )
        rows = rows * (torch.unflatten(weights, -1, (self.points, len(small))) @ self.by_level)
        sides = [max(size) for size in small]
        by_cell = [
            (row[..., :height].mT @ column[..., :width]).flatten(-2)
            for (height, width), row, column in zip(
                small, torch.split(rows, sides, -1), torch.split(columns, sides, -1), strict=True
            )
        ]
        joined = torch.cat(by_cell, dim=-1).flatten(0, 1)  # (N * K, H, cells)
        return joined.flatten(0, 1) @ table

    def _prepare_levels(self, lengths: Tensor) -> None:
        self.corners = Corners(self.sizes[: self.large], self.points)
        sides = lengths[self.large :].amax(1).long()
        self.register_buffer("by_level", torch.eye(len(sides)).repeat_interleave(sides, dim=1))
        numbers = [torch.arange(side, dtype=torch.float32) for side in sides]
        self.register_buffer("cells", -torch.cat([torch.zeros(0), *numbers]))


class ProjectedDeformable(nn.Module):
    """A `DeformableAttention` that projects every cell first, for many points."""

    half_sizes: Tensor  # (L * H * P * 2,) half of the width and height of each position's level
    spread: Tensor  # (2, L * H * P * 2) repeats a center for every position

    def __init__(self, attention: DeformableAttention, sizes: Sizes) -> None:
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
        self.project, self.tell = attention.value_proj, attention.output_proj

    def forward(
        self,
        query: Tensor,  # (N, C)
        centers: Tensor,  # (N, K, 2) in -1..1
        pyramid: Pyramid,  # of the features
    ) -> Tensor:
        """Return what the queries read, (N, K, C), without the query itself."""
        count, depth, heads = centers.shape[1], len(self.sizes), self.heads
        # The offsets are those of the point: its candidates differ in their centers.
        grids = self.move(query).unsqueeze(1) + centers @ self.spread  # (N, K, L * H * P * 2)
        weights = self.weigh(query).view(-1, heads, depth * self.points).softmax(-1)
        weights = weights.view(-1, 1, heads, depth, self.points).transpose(2, 3)
        weights = weights.expand(-1, count, -1, -1, -1)  # (N, K, L, H, P)
        height, width = self.sizes[0]
        finest = torch.cat([*pyramid])[: height * width]
        levels = _make_levels(self.project(finest), self.sizes, heads)
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
        return told


def _read(level: Level, grid: Tensor, weights: Tensor) -> Tensor:
    """Sum samples at (G, R, P, 2) with weights (G, R, P); returns (G, R, C / G)."""
    height, width = level.size
    if height * width > SMALL_PROJECTED_MAP:
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


class ProjectedDeformables(nn.Module):
    """What `CpuDeformable` returns, one attention after the other."""

    def __init__(self, attentions: Sequence[DeformableAttention], sizes: Sizes) -> None:
        super().__init__()
        self.readers = nn.ModuleList(ProjectedDeformable(each, sizes) for each in attentions)

    def forward(self, query: Tensor, centers: Tensor, pyramid: Pyramid) -> list[Tensor]:
        return [reader(query, centers, pyramid) for reader in self.readers]


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
