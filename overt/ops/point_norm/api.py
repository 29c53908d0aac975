"""Group normalization: with swish over rows of points, voxels or packed pairs, alone over grids.

Letters: B clouds, R rows of a cloud, P pairs, M centers, C channels. The plain functions are the
definition, for any device; the Triton twins keep only their input for the backward pass.

A constant, the bias of the layer before or what is the same at every point of a cloud, is added to
the rows before they are normalized. Here it costs nothing: it moves the mean, and its gradient is
made of sums that the norm needs anyway.
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
    constant: Tensor | None = None,  # (C,) or (B, C)
) -> Tensor:
    """swish(normalized (rows + constant) * scale + shift), (B, R, C)."""
    if not use_kernels("point_norm", rows):
        return norm_swish_plain(rows, scale, shift, groups, constant)
    return _fused(rows, scale, shift, groups, True, constant)


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
    result = _fused(rows.flatten(1, 3), scale, shift, groups, False)
    return result.view(rows.shape).permute(0, 4, 1, 2, 3)


def _fused(
    rows: Tensor,
    scale: Tensor,
    shift: Tensor,
    groups: int,
    swish: bool,
    constant: Tensor | None = None,
) -> Tensor:
    from overt.ops.point_norm.kernels import norm_swish_fused

    batch, length, _ = rows.shape
    by_cloud = _by_cloud(constant, batch)
    result: Tensor = norm_swish_fused(
        rows.flatten(0, 1), scale, shift, groups, batch, length, None, None, None, swish, by_cloud
    )[0]
    return result.view_as(rows)


def _by_cloud(constant: Tensor | None, batch: int) -> Tensor | None:
    return None if constant is None else constant.float().expand(batch, -1)


def norm_swish_pairs(
    rows: Tensor,  # (P, C)
    scale: Tensor,  # (C,)
    shift: Tensor,  # (C,)
    groups: int,
    pairs: Pairs,
    constant: Tensor | None = None,  # (C,) or (B, C)
) -> Tensor:
    """`norm_swish` of packed pairs as if the padding were there, (P, C)."""
    if not use_kernels("point_norm", rows):
        return norm_swish_pairs_plain(rows, scale, shift, groups, pairs, constant)
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
        True,
        _by_cloud(constant, pairs.batch),
    )[0]
    return result


def norm_swish_max(
    rows: Tensor,  # (P, C)
    scale: Tensor,  # (C,)
    shift: Tensor,  # (C,)
    groups: int,
    pairs: Pairs,
    constant: Tensor | None = None,  # (C,) or (B, C)
) -> Tensor:
    """The largest value of `norm_swish_pairs` in each neighborhood, (B * M, C)."""
    if not use_kernels("point_norm", rows):
        return norm_swish_max_plain(rows, scale, shift, groups, pairs, constant)
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
        _by_cloud(constant, pairs.batch),
    )[0]
    return result
