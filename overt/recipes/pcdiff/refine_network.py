"""Network of the refinement: bone and points around an implant to the volume of the implant.

Letters: B cases, K implant points, R nodes along a side of the cube.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from overt.ops.convolve import convolve_grid
from overt.recipes.pcdiff.voxel_network import UNet3D

CHANNELS = 3  # skull, mirror image, points


class RefinementNetwork(nn.Module):
    """Predict logits (B, R, R, R) of an implant: above 0 a node is inside."""

    def __init__(self, *, width: int, levels: int) -> None:
        super().__init__()
        self.first = nn.Conv3d(CHANNELS, width, 3, padding=1)
        self.unet3d = UNet3D(width, levels)
        self.last = nn.Conv3d(width, 1, 1)

    def forward(self, skull: Tensor, mirrored: Tensor, points: Tensor) -> Tensor:
        """Take bone (B, R, R, R) and points (B, K, 3) of the unit cube."""
        counts = count_points(points, skull.shape[1])
        x = torch.stack([skull.float(), mirrored.float(), counts.log1p()], dim=1)
        x = x.contiguous(memory_format=torch.channels_last_3d)
        x = convolve_grid(x, self.first.weight, self.first.bias)
        return cast(Tensor, self.last(self.unet3d(x)))[:, 0]


def count_points(points: Tensor, side: int) -> Tensor:
    """Return how many points (B, K, 3) of the unit cube are nearest to each node: (B, R, R, R).

    Points outside the cube are not counted. Whole numbers: the order of the sums does not matter.
    """
    nodes = (points * side).round().long()  # (B, K, 3)
    inside = ((nodes >= 0) & (nodes < side)).all(dim=2)
    nodes = nodes.clamp(0, side - 1)
    cells = (nodes[..., 0] * side + nodes[..., 1]) * side + nodes[..., 2]
    cells = cells + side**3 * torch.arange(len(points), device=points.device)[:, None]
    counts = points.new_zeros(len(points) * side**3)
    counts = counts.index_add(0, cells.flatten(), inside.flatten().to(points.dtype))
    return counts.view(len(points), side, side, side)
