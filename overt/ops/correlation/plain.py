"""Compare the square around a moving point with the square around its query, all samples with all.

Letters: B batch, N points, L levels, T frames, C channels; r radius, P = 2r + 1 samples and
S = 2r + 2 cells along a side of the square.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overt.ops.correlation.taps import SquareTaps, mix_taps


def correlate_plain(
    cells: Tensor,  # (rows, C) feature maps of all levels and frames, cell by cell
    support: Tensor,  # (B, N, L, P*P, C) samples around each query
    map_rows: Tensor,  # (B, L, T) row of the first cell of each map; its cells are ordered y, x
    sizes_xy: Tensor,  # (L, 2) width and height of a map
    centres_xy: Tensor,  # (B, N, L, T, 2) cells of that level
    taps: SquareTaps,
) -> Tensor:
    """Products of every sample around the center with every sample around the query.

    The result, (B, N, L, T, P*P * P*P), has the frame's samples before the query's. What is
    interpolated are features or their products, whichever are fewer numbers.
    """
    numbers, weights = taps(centres_xy, sizes_xy.unsqueeze(1))
    rows = map_rows.unsqueeze(1).unsqueeze(-1) + numbers  # (B, N, L, T, S*S)
    squares = cells.index_select(0, rows.flatten()).view(*rows.shape, -1)
    mix_features = squares.shape[-1] < support.shape[3]
    if mix_features:
        squares = mix_taps(weights, squares)  # (B, N, L, T, P*P, C)
    # One large product per point serves all its frames.
    products = squares.flatten(3, 4) @ support.mT  # (B, N, L, T * P*P or S*S, P*P)
    products = torch.unflatten(products, 3, (rows.shape[3], -1))
    return (products if mix_features else mix_taps(weights, products)).flatten(-2)
