"""Weighted sums of rows by index, and their transpose: what voxels, corners and neighbors share.

Letters: R rows, O results, K terms of a result, C channels.
"""

from __future__ import annotations

from torch import Tensor


def mix_rows_plain(rows: Tensor, index: Tensor, weight: Tensor | None = None) -> Tensor:
    """result[o] = sum over k of weight[o, k] * rows[index[o, k]]; float32 inside."""
    gathered = rows.index_select(0, index.flatten()).view(*index.shape, -1)  # (O, K, C)
    if weight is None:
        return gathered.sum(1) if index.shape[1] > 1 else gathered.squeeze(1)
    # Not a product of batches: CPUs without MKL multiply them one at a time.
    return (gathered.float() * weight.unsqueeze(-1)).sum(1).to(rows.dtype)


def spread_rows_plain(
    rows: Tensor, index: Tensor, weight: Tensor | None = None, *, count: int
) -> Tensor:
    """result[index[o, k]] += weight[o, k] * rows[o], from zeros: the transpose of `mix_rows`."""
    terms = rows.float().unsqueeze(1)  # (O, 1, C)
    terms = terms.expand(-1, index.shape[1], -1) if weight is None else terms * weight.unsqueeze(-1)
    result = terms.new_zeros((count, rows.shape[1]))
    return result.index_add(0, index.flatten(), terms.flatten(0, 1)).to(rows.dtype)
