"""Multi-scale deformable attention: each query reads a few positions of a feature pyramid.

Letters: B batch, Q queries, H heads, D channels of a head, L levels, P positions per level, S cells
of all levels. For any device, and for export.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from overt.ops.grid_sample.api import grid_sample

Sizes = Sequence[tuple[int, int]]  # (height, width) of every level


def sampling_locations(
    reference_xy: Tensor,  # (B, Q, L, 2) parts of the image
    offsets: Tensor,  # (B, Q, H, L, P, 2) cells of the level
    sizes: Sizes,
) -> Tensor:
    """Where every head looks, (B, Q, H, L, P, 2) as (x, y) in parts of the image, float32."""
    levels = [
        reference_xy[:, :, None, level, None].float()
        + torch.stack(
            [offsets[:, :, :, level, :, 0] / width, offsets[:, :, :, level, :, 1] / height], dim=-1
        )
        for level, (height, width) in enumerate(sizes)
    ]
    return torch.stack(levels, dim=3)


def deformable_plain(
    values: Tensor,  # (B, S, H, D) level after level, row by row
    reference_xy: Tensor,  # (B, Q, L, 2) parts of the image, float32
    offsets: Tensor,  # (B, Q, H, L, P, 2) cells of the level, (x, y)
    logits: Tensor,  # (B, Q, H, L, P) how much each position counts, before the softmax
    sizes: Sizes,
) -> Tensor:
    """The mean of the positions' values weighted by a softmax over all levels, (B, Q, H, D).

    A position reads its level bilinearly; each of the four cells that lies outside counts as zero.
    """
    batch, _, heads, channels = values.shape
    queries, positions = offsets.shape[1], offsets.shape[4]
    weights = torch.softmax(logits.float().flatten(3), dim=-1)  # (B, Q, H, L * P)
    grids = 2 * sampling_locations(reference_xy, offsets.float(), sizes) - 1
    maps = values.float().permute(0, 2, 3, 1)  # (B, H, D, S)
    samples = []
    parts = torch.split(maps, [height * width for height, width in sizes], dim=-1)
    for level, (height, width) in enumerate(sizes):
        images = parts[level].reshape(batch * heads, channels, height, width)
        grid = grids[:, :, :, level].transpose(1, 2).reshape(batch * heads, queries, positions, 2)
        samples.append(grid_sample(images, grid, padding="zeros"))
    read = torch.cat(samples, dim=-1)  # (B * H, D, Q, L * P)
    mix = weights.transpose(1, 2).reshape(batch * heads, 1, queries, -1)
    result = (read * mix).sum(-1).view(batch, heads, channels, queries)
    return result.permute(0, 3, 1, 2).to(values.dtype)
