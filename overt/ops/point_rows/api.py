"""Weighted sums of rows by index, and their transpose: what voxels, corners and neighbors share.

Letters: R rows, O results, K terms of a result, C channels. The plain functions are the definition,
for any device; on CUDA the Triton twins compute the same and never write the K gathered rows.
"""

from __future__ import annotations

from torch import Tensor

from overt.ops.dispatch import use_kernels
from overt.ops.point_rows.lists import RowLists
from overt.ops.point_rows.plain import mix_rows_plain, spread_rows_plain

NO_LISTS = (None, None, 0)


def mix_rows(
    rows: Tensor,  # (R, C)
    index: Tensor,  # (O, K) int32
    weight: Tensor | None = None,  # (O, K) float32; no gradient flows to it
    lists: RowLists | None = None,  # of the index, which make the gradient faster
) -> Tensor:
    """`mix_rows_plain`, by the kernel where it can run: (O, C)."""
    if not use_kernels("point_rows", rows):
        return mix_rows_plain(rows, index, weight)
    from overt.ops.point_rows.kernels import mix_rows_fused

    result: Tensor = mix_rows_fused(rows, index, weight, *(lists or NO_LISTS))
    return result


def spread_rows(
    rows: Tensor,  # (O, C)
    index: Tensor,  # (O, K) int32
    weight: Tensor | None = None,  # (O, K) float32; no gradient flows to it
    *,
    count: int,
    lists: RowLists | None = None,  # of the index, which make the sums faster
) -> Tensor:
    """`spread_rows_plain`, by the kernel where it can run: (count, C)."""
    if not use_kernels("point_rows", rows):
        return spread_rows_plain(rows, index, weight, count=count)
    from overt.ops.point_rows.kernels import spread_rows_fused

    result: Tensor = spread_rows_fused(rows, index, weight, count, *(lists or NO_LISTS))
    return result
