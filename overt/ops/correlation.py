"""Compare the square around a moving point with the square around its query, all samples with all.

Letters: B batch, N points, L levels, T frames, C channels; r radius, P = 2r + 1 samples and
S = 2r + 2 cells along a side of the square. `correlate_plain` is the definition, for any device;
the Triton twin computes the same on CUDA and keeps nothing but its inputs for the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overt.geometry.sample import SquareTaps, mix_taps
from overt.ops import HAS_TRITON

ALIGNMENT = 64  # the width of the result is filled up to a multiple, for fast matrix products


def padded_width(radius: int) -> int:
    """Entries of a result row: P^4, filled up with zeros."""
    return -(-((2 * radius + 1) ** 4) // ALIGNMENT) * ALIGNMENT


def correlate_plain(
    cells: Tensor,  # (rows, C) feature maps of all levels and frames, cell by cell
    support: Tensor,  # (B, N, L, P*P, C) samples around each query
    map_rows: Tensor,  # (B, L, T) row of the first cell of each map; its cells are ordered y, x
    sizes_xy: Tensor,  # (L, 2) width and height of a map
    centres_xy: Tensor,  # (B, N, L, T, 2) cells of that level
    taps: SquareTaps,
) -> Tensor:
    """Products of every sample around the centre with every sample around the query.

    The result, (B, N, L, T, P*P * P*P), has the frame's samples before the query's. Interpolating
    the products, not the features, keeps P*P features per point and frame from being written.
    """
    numbers, weights = taps(centres_xy, sizes_xy.unsqueeze(1))
    rows = map_rows.unsqueeze(1).unsqueeze(-1) + numbers  # (B, N, L, T, S*S)
    squares = cells.index_select(0, rows.flatten()).view(*rows.shape, -1)
    # One large product per point serves all its frames.
    products = squares.flatten(3, 4) @ support.mT  # (B, N, L, T * S*S, P*P)
    products = torch.unflatten(products, 3, (rows.shape[3], -1))
    return mix_taps(weights, products).flatten(-2)


def correlate(
    cells: Tensor,  # (rows, C) float32
    cells_used: Tensor,  # (rows, C) the same, without gradient, in the type to compute in
    support: Tensor,
    map_rows: Tensor,
    sizes_xy: Tensor,
    centres_xy: Tensor,
    taps: SquareTaps,
) -> Tensor:
    """`correlate_plain`, by the kernels where they can run: then rows are `padded_width` wide.

    The kernels compute in the type of `cells_used` and add up the gradient of `cells` in float32.
    """
    if not (HAS_TRITON and cells.is_cuda):
        return correlate_plain(cells, support, map_rows, sizes_xy, centres_xy, taps)
    from overt.ops.correlation_kernels import correlate_fused

    result: Tensor = correlate_fused(
        cells, cells_used, support, map_rows, sizes_xy, centres_xy, taps.radius
    )
    return result
