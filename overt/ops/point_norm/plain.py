"""Group normalization followed by swish, over rows of points, voxels or packed pairs.

Letters: B clouds, R rows of a cloud, P pairs, M centers, C channels. Statistics are those of a
cloud's rows and a group's channels together; a pair counts as often as its weight says.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from overt.ops.point_pairs.plain import Pairs

EPS = 1e-5


def norm_grid_plain(grids: Tensor, scale: Tensor, shift: Tensor, groups: int) -> Tensor:
    """See `norm_grid`."""
    return F.group_norm(grids, groups, scale, shift, EPS)


def norm_swish_plain(
    rows: Tensor, scale: Tensor, shift: Tensor, groups: int, constant: Tensor | None = None
) -> Tensor:
    """See `norm_swish`."""
    values = rows.float()
    if constant is not None:
        values = values + (constant if constant.ndim == 1 else constant.unsqueeze(1))
    normal = F.group_norm(values.transpose(1, 2), groups, scale, shift, EPS)
    return F.silu(normal).transpose(1, 2).to(rows.dtype)


def norm_swish_pairs_plain(
    rows: Tensor,
    scale: Tensor,
    shift: Tensor,
    groups: int,
    pairs: Pairs,
    constant: Tensor | None = None,
) -> Tensor:
    """See `norm_swish_pairs`."""
    values, centers = rows.float(), pairs.centers_per_cloud
    cloud = (pairs.centers // centers).long().clamp(max=pairs.batch - 1)  # (P,)
    if constant is not None:
        values = values + (constant if constant.ndim == 1 else constant.index_select(0, cloud))
    channels = rows.shape[1] // groups
    size = centers * pairs.slots * channels

    def mean_of(terms: Tensor) -> Tensor:
        """By cloud and channel, the mean over the channel's group, (B, C) float32."""
        # In float64: a float32 sum over all pairs would be off.
        weighted = terms.double() * pairs.weights[:, None]
        sums = weighted.new_zeros((pairs.batch, rows.shape[1])).index_add(0, cloud, weighted)
        sums = torch.unflatten(sums, 1, (groups, channels)).sum(2) / size
        return sums.repeat_interleave(channels, 1).float()

    centered = values - mean_of(values).index_select(0, cloud)
    variance = mean_of(centered.square())
    factor = (variance + EPS).rsqrt() * scale
    normal = centered * factor.index_select(0, cloud) + shift
    return F.silu(normal).to(rows.dtype)


def norm_swish_max_plain(
    rows: Tensor,
    scale: Tensor,
    shift: Tensor,
    groups: int,
    pairs: Pairs,
    constant: Tensor | None = None,
) -> Tensor:
    """See `norm_swish_max`."""
    values = norm_swish_pairs_plain(rows, scale, shift, groups, pairs, constant)
    count = pairs.starts.shape[0] - 1
    target = values.new_zeros((count + 1, rows.shape[1]))  # the last one for unused pairs
    index = pairs.centers.long()[:, None].expand_as(values)
    return target.scatter_reduce(0, index, values, "amax", include_self=False)[:count]
