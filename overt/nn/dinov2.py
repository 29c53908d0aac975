"""The DINOv2 vision transformer: features of chosen blocks, under the published key names.

Depth-Anything-V2 is built on it. Shapes: B images, N patches, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from overt.nn.vit import Grid, VisionTransformer
from overt.ops.resize.api import resize

PATCH = 14
# The table is stretched by (grid + OFFSET) / stored per axis, as it was when the weights were made.
OFFSET = 0.1


class Tap(NamedTuple):
    """Features after one block, normalized."""

    patches: Tensor  # (B, N, D)
    summary: Tensor  # (B, D): the class token


class DinoVisionTransformer(VisionTransformer):
    """The vision transformer with DINOv2's keys and its way of stretching positions."""

    def __init__(
        self, image_size: tuple[int, int], width: int, depth: int, heads: int, patch: int = PATCH
    ) -> None:
        super().__init__(image_size, patch, width, depth, heads, layer_scale=1.0)
        # In every published file, for its training by masks; nothing reads it here.
        self.mask_token = nn.Parameter(torch.zeros(1, width), requires_grad=False)

    def positions(self, grid: Grid) -> Tensor:
        """The position table for a grid of patches, interpolated for any other than its own."""
        if grid == self.grid:
            return self.pos_embed
        first, patches = self.pos_embed[:, :1], self.pos_embed[:, 1:]
        square = torch.unflatten(patches, 1, self.grid).permute(0, 3, 1, 2)  # (1, D, down, across)
        factors = [(new + OFFSET) / old for new, old in zip(grid, self.grid, strict=True)]
        stretched = resize(square.float(), scale_factor=factors, mode="bicubic")
        assert stretched.shape[2:] == grid, "the stretched table misses the grid"
        table = stretched.flatten(2).transpose(1, 2).to(patches.dtype)
        return torch.cat([first, table], dim=1)

    def taps(self, images: Tensor, blocks: Sequence[int]) -> list[Tap]:
        """Features after the chosen blocks, each through the last norm."""
        assert self.cls_token is not None
        tokens = self.embed(images)
        first = (self.cls_token + self.pos_embed[:, :1]).expand(len(tokens), -1, -1)
        tokens = torch.cat([first.to(tokens.dtype), tokens], dim=1)
        taps = {}
        for number, block in enumerate(self.blocks[: max(blocks) + 1]):
            tokens = block(tokens)
            if number in blocks:
                normed = self.norm(tokens)
                taps[number] = Tap(normed[:, 1:], normed[:, 0])
        return [taps[number] for number in blocks]
