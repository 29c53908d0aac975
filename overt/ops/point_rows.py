"""Weighted sums of rows by index, and their transpose: what voxels, corners and neighbours share.

Letters: R rows, O results, K terms of a result, C channels. The plain functions are the definition,
for any device; on CUDA the Triton twins compute the same and never write the K gathered rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overt.ops import HAS_TRITON


def use_kernels(tensor: Tensor) -> bool:
    """Whether the Triton twin serves this tensor; its atomic sums are not repeatable bit by bit."""
    return HAS_TRITON and tensor.is_cuda and not torch.are_deterministic_algorithms_enabled()


def mix_rows_plain(rows: Tensor, index: Tensor, weight: Tensor | None = None) -> Tensor:
    """result[o] = sum over k of weight[o, k] * rows[index[o, k]]; float32 inside."""
    gathered = rows.index_select(0, index.flatten()).view(*index.shape, -1)  # (O, K, C)
    if weight is None:
        return gathered.sum(1) if index.shape[1] > 1 else gathered.squeeze(1)
    return torch.einsum("okc,ok->oc", gathered.float(), weight).to(rows.dtype)


def spread_rows_plain(
    rows: Tensor, index: Tensor, weight: Tensor | None = None, *, count: int
) -> Tensor:
    """result[index[o, k]] += weight[o, k] * rows[o], from zeros: the transpose of `mix_rows`."""
    terms = rows.float().unsqueeze(1)  # (O, 1, C)
    terms = terms.expand(-1, index.shape[1], -1) if weight is None else terms * weight.unsqueeze(-1)
    result = terms.new_zeros((count, rows.shape[1]))
    return result.index_add(0, index.flatten(), terms.flatten(0, 1)).to(rows.dtype)


def mix_rows(
    rows: Tensor,  # (R, C)
    index: Tensor,  # (O, K) int32
    weight: Tensor | None = None,  # (O, K) float32; no gradient flows to it
) -> Tensor:
    """`mix_rows_plain`, by the kernel where it can run: (O, C)."""
    if not use_kernels(rows):
        return mix_rows_plain(rows, index, weight)
    from overt.ops.point_rows_kernels import mix_rows_fused

    result: Tensor = mix_rows_fused(rows, index, weight)
    return result


def spread_rows(
    rows: Tensor,  # (O, C)
    index: Tensor,  # (O, K) int32
    weight: Tensor | None = None,  # (O, K) float32; no gradient flows to it
    *,
    count: int,
) -> Tensor:
    """`spread_rows_plain`, by the kernel where it can run: (count, C)."""
    if not use_kernels(rows):
        return spread_rows_plain(rows, index, weight, count=count)
    from overt.ops.point_rows_kernels import spread_rows_fused

    result: Tensor = spread_rows_fused(rows, index, weight, count)
    return result
