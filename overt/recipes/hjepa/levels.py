"""The levels of the hierarchy: pooling patch features to larger regions.

On the grid a region of level l is a square of 2^l x 2^l patches; along the sequence, as in the
reference, 2^l neighbors in the list of hidden patches. Shapes: T tokens, C cells, D features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from overt.nested import map_tensors
from overt.ops.resize.api import resize
from overt.recipes.hjepa.masks import Grid

Value = TypeVar("Value")


@dataclass(frozen=True)
class Cells:
    """The cells of one level that contain tokens; computed on the host by `grid_cells`."""

    of_token: Tensor  # (T,) the cell of each token
    size: Tensor  # (C,) float, tokens in the cell
    parent: Tensor  # (C,) the cell of the next level that holds this one
    # (C,) bool, more than half of the cell's patches are tokens; or float, the weight in the loss
    valid: Tensor


@dataclass(frozen=True)
class GridPooling:
    """Averages over squares of the patch grid; tokens are packed, (T, D)."""

    levels: tuple[Cells, ...]

    def pool(self, tokens: Tensor, level: int) -> Tensor:
        """Return the mean over each cell, (C, D)."""
        if level == 0:
            return tokens
        cells = self.levels[level]
        # Sums of many small terms: never in half precision.
        sums = tokens.new_zeros(len(cells.size), tokens.shape[-1], dtype=torch.float32)
        sums = sums.index_add(0, cells.of_token, tokens.float())
        return sums / cells.size[:, None]

    def expand(self, above: Tensor, level: int) -> Tensor:
        """Return the features of the level above for each cell of this level."""
        return above.index_select(0, self.levels[level].parent)

    def valid(self, level: int) -> Tensor:
        """Return which cells count in the loss, (C,)."""
        return self.levels[level].valid


@dataclass(frozen=True)
class SequencePooling:
    """Averages over neighbors in the list of tokens, remainder dropped; tokens are (B, M, D)."""

    token_valid: Tensor  # (B, M) bool, false for padding

    def pool(self, tokens: Tensor, level: int) -> Tensor:
        """Return the mean over each window of 2^level tokens, (B, M // 2^level, D)."""
        if level == 0:
            return tokens
        return F.avg_pool1d(tokens.transpose(1, 2), 2**level).transpose(1, 2)

    def expand(self, above: Tensor, level: int) -> Tensor:
        """Return the features of the level above, interpolated to the length of this level."""
        length = self.token_valid.shape[1] // 2**level
        if above.shape[1] == length:
            return above
        wide = resize(above.transpose(1, 2), [length], mode="linear")
        return wide.transpose(1, 2)

    def valid(self, level: int) -> Tensor:
        """Return which windows count in the loss: more than half of their tokens are real."""
        fraction = self.pool(self.token_valid[..., None].float(), level)[..., 0]
        return fraction > 0.5


Pooling = GridPooling | SequencePooling


def grid_cells(
    patch_indices: np.ndarray,
    sequences: np.ndarray,
    grid: Grid,
    levels: int,
    by_sequence: bool = False,
) -> GridPooling:
    """Return the cells of every level for tokens at these grid positions, by sequence.

    `by_sequence`: the valid cells of a sequence have a total weight of 1.
    """
    rows, columns = np.divmod(patch_indices, grid[1])
    per_level = []
    for level in range(levels):
        across = -(-grid[1] // 2**level)
        down = -(-grid[0] // 2**level)
        key = (sequences * down + (rows >> level)) * across + (columns >> level)
        if level == 0:
            first, of_token = np.arange(len(patch_indices)), np.arange(len(patch_indices))
        else:
            _, first, of_token = np.unique(key, return_index=True, return_inverse=True)
        per_level.append((first, of_token))
    levels_made = []
    for level, (first, of_token) in enumerate(per_level):
        size = np.bincount(of_token, minlength=len(first)).astype(np.float32)
        parent_of_token = per_level[level + 1][1] if level + 1 < levels else of_token
        side = 2**level
        top, left = rows[first] // side * side, columns[first] // side * side
        cell_area = np.minimum(side, grid[0] - top) * np.minimum(side, grid[1] - left)
        valid = size > 0.5 * cell_area
        if by_sequence:
            of_cell = sequences[first]
            counts = np.bincount(of_cell[valid], minlength=int(sequences.max()) + 1)
            valid = (valid / np.maximum(counts[of_cell], 1)).astype(np.float32)
        levels_made.append(
            Cells(
                of_token=torch.from_numpy(of_token.astype(np.int64)),
                size=torch.from_numpy(size),
                parent=torch.from_numpy(parent_of_token[first].astype(np.int64)),
                valid=torch.from_numpy(valid),
            )
        )
    return GridPooling(tuple(levels_made))


def dense_cells(batch: int, grid: Grid, levels: int) -> GridPooling:
    """The cells of whole images."""
    patches = grid[0] * grid[1]
    patch_indices = np.tile(np.arange(patches), batch)
    return grid_cells(patch_indices, np.repeat(np.arange(batch), patches), grid, levels)


def valid_counts(pooling: Pooling, levels: int) -> Tensor:
    """Return how many regions of each level count in the loss, (L,)."""
    return torch.stack([pooling.valid(level).sum() for level in range(levels)])


def to_device(value: Value, device: torch.device) -> Value:
    """Return the same index tensors on `device`."""
    moved: Value = map_tensors(value, lambda tensor: tensor.to(device))
    return moved
