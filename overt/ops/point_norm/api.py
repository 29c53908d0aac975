"""Group normalization: with swish over rows of points, voxels or packed pairs, alone over grids.

Letters: B clouds, R rows of a cloud, P pairs, M centers, C channels. The plain functions are the
definition, for any device; the Triton twins keep only their input for the backward pass.
"""

from __future__ import annotations

from torch import Tensor

from overt.ops.dispatch import use_kernels
from overt.ops.point_norm.plain import (
    norm_grid_plain,
    norm_swish_max_plain,
    norm_swish_pairs_plain,
    norm_swish_plain,
)
from overt.ops.point_pairs.plain import Pairs


def norm_swish(
    rows: Tensor,  # (B, R, C)
    scale: Tensor,  # (C,)
    shift: Tensor,  # (C,)
    groups: int,
) -> Tensor:
    """swish(normalized rows * scale + shift), (B, R, C)."""
    if not use_kernels("point_norm", rows):
        return norm_swish_plain(rows, scale, shift, groups)
    return _fused(rows, scale, shift, groups, swish=True)


def norm_grid(
    grids: Tensor,  # (B, C, Z, Y, X)
    scale: Tensor,  # (C,)
    shift: Tensor,  # (C,)
    groups: int,
) -> Tensor:
    """Normalized grids * scale + shift; the kernels read and write them channels last."""
    if not use_kernels("point_norm", grids):
        return norm_grid_plain(grids, scale, shift, groups)
    rows = grids.permute(0, 2, 3, 4, 1)
    result = _fused(rows.flatten(1, 3), scale, shift, groups, swish=False)
    return result.view(rows.shape).permute(0, 4, 1, 2, 3)


def _fused(rows: Tensor, scale: Tensor, shift: Tensor, groups: int, swish: bool) -> Tensor:
    from overt.ops.point_norm.kernels import norm_swish_fused

    batch, length, _ = rows.shape
    result: Tensor = norm_swish_fused(
        rows.flatten(0, 1), scale, shift, groups, batch, length, None, None, None, swish
    )[0]
    return result.view_as(rows)


def norm_swish_pairs(
    rows: Tensor,  # (P, C)
    scale: Tensor,  # (C,)
    shift: Tensor,  # (C,)
    groups: int,
    pairs: Pairs,
) -> Tensor:
    """`norm_swish` of packed pairs as if the padding were there, (P, C)."""
    if not use_kernels("point_norm", rows):
        return norm_swish_pairs_plain(rows, scale, shift, groups, pairs)
    from overt.ops.point_norm.kernels import norm_swish_fused

    result: Tensor = norm_swish_fused(
        rows,
        scale,
        shift,
        groups,
        pairs.batch,
        pairs.centers_per_cloud * pairs.slots,
        pairs.weights,
        pairs.centers,
        pairs.starts,
    )[0]
    return result


def norm_swish_max(
    rows: Tensor,  # (P, C)
    scale: Tensor,  # (C,)
    shift: Tensor,  # (C,)
    groups: int,
    pairs: Pairs,
) -> Tensor:
    """The largest value of `norm_swish_pairs` in each neighborhood, (B * M, C)."""
    if not use_kernels("point_norm", rows):
        return norm_swish_max_plain(rows, scale, shift, groups, pairs)
    from overt.ops.point_norm.kernels import norm_swish_max_fused

    result: Tensor = norm_swish_max_fused(
        rows,
        scale,
        shift,
        groups,
        pairs.batch,
        pairs.centers_per_cloud * pairs.slots,
        pairs.weights,
        pairs.centers,
        pairs.starts,
    )[0]
    return result
