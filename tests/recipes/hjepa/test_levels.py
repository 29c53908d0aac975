"""Levels of the hierarchy: squares of the patch grid and windows of the list."""

import numpy as np
import torch

from overt.recipes.hjepa.levels import SequencePooling, dense_cells, grid_cells, valid_counts

GRID = (5, 6)


def test_a_cell_is_the_mean_of_its_patches_that_are_tokens() -> None:
    places = np.array([0, 1, 7, 12, 29, 0, 14])
    sequences = np.array([0, 0, 0, 0, 0, 1, 1])
    pooling = grid_cells(places, sequences, GRID, 3)
    tokens = torch.randn(7, 4)
    for level in range(3):
        cells = pooling.levels[level]
        found = pooling.pool(tokens, level)
        keys = [
            (s, p // 6 >> level, p % 6 >> level) for s, p in zip(sequences, places, strict=True)
        ]
        for number, key in enumerate(keys):
            members = [n for n, other in enumerate(keys) if other == key]
            cell = cells.of_token[number]
            torch.testing.assert_close(found[cell], tokens[members].mean(0))
            side = 2**level
            rows = min(side, GRID[0] - key[1] * side)
            columns = min(side, GRID[1] - key[2] * side)
            assert cells.valid[cell].item() == (len(members) > 0.5 * rows * columns)
    assert valid_counts(pooling, 3).tolist() == [7, 1, 0]


def test_what_a_cell_gets_from_above_is_its_parents() -> None:
    pooling = dense_cells(2, GRID, 3)
    tokens = torch.randn(60, 4)
    above = pooling.pool(tokens, 2)
    expected = above[pooling.levels[2].of_token]
    found = pooling.expand(pooling.expand(above, 1), 0)
    assert torch.equal(found, expected)
    assert all(cells.valid.all() for cells in pooling.levels)
    assert [len(cells.size) for cells in pooling.levels] == [60, 2 * 3 * 3, 2 * 2 * 2]


def test_pooling_commutes_with_itself_on_whole_cells() -> None:
    pooling = dense_cells(1, (4, 4), 3)
    tokens = torch.randn(16, 3)
    torch.testing.assert_close(pooling.pool(tokens, 2), tokens.mean(0, keepdim=True))


def test_windows_of_the_sequence_drop_the_remainder_and_count_more_than_half() -> None:
    valid = torch.tensor([[True, True, True, False, False], [True, True, True, True, True]])
    pooling = SequencePooling(valid)
    tokens = torch.arange(10.0).view(2, 5, 1)
    assert pooling.pool(tokens, 1)[..., 0].tolist() == [[0.5, 2.5], [5.5, 7.5]]
    assert pooling.valid(1).tolist() == [[True, False], [True, True]]
    assert valid_counts(pooling, 2).tolist() == [8, 3]


def test_blocks_weigh_alike_whatever_their_size() -> None:
    places = np.array([0, 1, 4, 5, 10])  # four patches of one block, one of another
    sequences = np.array([0, 0, 0, 0, 1])
    pooling = grid_cells(places, sequences, (4, 4), 2, by_sequence=True)
    assert pooling.valid(0).tolist() == [0.25, 0.25, 0.25, 0.25, 1.0]
    assert pooling.valid(1).tolist() == [1.0, 0.0]  # one patch of four is no region
    assert valid_counts(pooling, 2).tolist() == [2.0, 1.0]
