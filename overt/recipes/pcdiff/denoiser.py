"""The denoiser, which predicts the noise in the implant's points from the whole cloud.

Letters: B clouds, N points, D width of the time embedding. Known points come first, the implant's
last. Keys and their order are those of the published checkpoints, quirks included: below the first
level only one point-voxel convolution is built, on odd levels it has attention instead of a gate,
on the way up never, and a level without convolutions is stored without an index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from overt.recipes.pcdiff.geometry import Geometry, LevelPlan, find_geometry
from overt.recipes.pcdiff.layers import (
    Attention,
    FeaturePropagation,
    PVConv,
    SetAbstraction,
    SharedMLP,
)


class Convolutions(NamedTuple):
    """Point-voxel convolutions of a level."""

    channels: int
    repeats: int
    resolution: int


class Down(NamedTuple):
    """A level on the way down: convolutions, then neighborhoods of centers."""

    convolutions: Convolutions | None
    centers: int
    radius: float
    neighbours: int
    widths: Sequence[int]
    pairs_per_center: int | None = None


class Up(NamedTuple):
    """A level on the way up: interpolation, then convolutions."""

    widths: Sequence[int]
    convolutions: Convolutions


def time_embedding(times: Tensor, width: int) -> Tensor:
    """Return sines, then cosines, of times (B,) at geometric frequencies: (B, width) float32."""
    half = width // 2
    exponents = torch.arange(half, dtype=torch.float64, device=times.device)
    frequencies = torch.exp(-exponents * (math.log(10000) / (half - 1))).float()
    angles = times.float()[:, None] * frequencies
    embedding = torch.cat([angles.sin(), angles.cos()], dim=1)
    return nn.functional.pad(embedding, (0, width % 2))


def make_plans(
    down: Sequence[Down], up: Sequence[Up], resolution_multiplier: float = 1.0
) -> list[LevelPlan]:
    """Return the geometry settings of each level; grids are shared by both directions."""
    plans = []
    for level, step in zip(down, reversed(up), strict=True):
        blocks = [block for block in (level.convolutions, step.convolutions) if block is not None]
        sides = {int(resolution_multiplier * block.resolution) for block in blocks}
        plans.append(
            LevelPlan(
                level.centers,
                level.radius,
                level.neighbours,
                tuple(sorted(sides)),
                level.pairs_per_center,
            )
        )
    return plans


def join_points(known: Tensor, implant: Tensor, marked: bool) -> Tensor:
    """Return known points (B, 3, S), then the implant's (B, 3, K), as the denoiser's input.

    With `marked` a fourth channel marks those of the implant: (B, 4, N).
    """
    cloud = torch.cat([known, implant], dim=2)
    if not marked:
        return cloud
    marks = torch.zeros_like(cloud[:, :1])
    marks[:, :, known.shape[2] :] = 1.0
    return torch.cat([cloud, marks], dim=1)


class Denoiser(nn.Module):
    """The point-voxel network of PVD with the levels of PCDiff."""

    def __init__(
        self,
        down: Sequence[Down],
        up: Sequence[Up],
        *,
        embed_dim: int,
        attention: bool,
        dropout: float | None,
        extra_channels: int = 0,
        out_channels: int = 3,
        width_multiplier: float = 1.0,
        resolution_multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.extra_channels = extra_channels

        def scaled(block: Convolutions) -> Convolutions:
            return Convolutions(
                int(width_multiplier * block.channels),
                block.repeats,
                int(resolution_multiplier * block.resolution),
            )

        def widths(values: Sequence[int]) -> list[int]:
            return [int(width_multiplier * value) for value in values]

        channels = 3 + extra_channels
        skips = []  # channels of each level's input
        sa_layers: list[nn.Module] = []
        for number, level in enumerate(down):
            skips.append(channels)
            extra = embed_dim if number > 0 else 0
            blocks: list[nn.Module] = []
            if level.convolutions is not None:
                block = scaled(level.convolutions)
                for index in range(block.repeats if number == 0 else 1):
                    attends = attention and number % 2 == 1 and index == 0
                    blocks.append(
                        PVConv(
                            channels + extra,
                            block.channels,
                            block.resolution,
                            dropout=dropout,
                            attention=attends,
                            squeeze_excite=not attends,
                        )
                    )
                    channels, extra = block.channels, 0
            blocks.append(SetAbstraction(channels + extra, widths(level.widths)))
            channels = widths(level.widths)[-1]
            sa_layers.append(blocks[0] if len(blocks) == 1 else nn.Sequential(*blocks))
        self.sa_layers = nn.ModuleList(sa_layers)
        self.global_att = Attention(channels, dimensions=1) if attention else None

        skips[0] = extra_channels  # the finest level is handed no coordinates
        fp_layers = []
        for number, step in enumerate(up):
            block = scaled(step.convolutions)
            widened = widths(step.widths)
            propagation = FeaturePropagation(channels + embed_dim + skips[-1 - number], widened)
            channels = widened[-1]
            stack: list[nn.Module] = [propagation]
            for _ in range(block.repeats):
                stack.append(PVConv(channels, block.channels, block.resolution, dropout=dropout))
                channels = block.channels
            fp_layers.append(nn.Sequential(*stack))
        self.fp_layers = nn.ModuleList(fp_layers)
        hidden = int(width_multiplier * 128)
        self.classifier = nn.Sequential(
            SharedMLP(channels, [hidden]), nn.Dropout(0.5), nn.Conv1d(hidden, out_channels, 1)
        )
        self.embedf = nn.Sequential(
            nn.Linear(embed_dim, embed_dim), nn.LeakyReLU(0.1), nn.Linear(embed_dim, embed_dim)
        )
        self.plans = make_plans(down, up, resolution_multiplier)

    def geometry(self, coords: Tensor) -> Geometry:
        """Return the geometry of point positions (B, N, 3) for the forward pass."""
        return find_geometry(coords, self.plans, differentiable=torch.is_grad_enabled())

    def forward(self, x: Tensor, times: Tensor, geometry: Geometry | None = None) -> Tensor:
        """Predict noise (B, 3, N) in clouds (B, 3 or 4, N), xyz first, at times (B,).

        `geometry` is that of the same positions, if already computed.
        """
        inputs = x.transpose(1, 2).contiguous()  # (B, N, 3)
        if geometry is None:
            geometry = self.geometry(inputs[..., :3])
        time: Tensor = self.embedf(time_embedding(times, self.embed_dim))  # (B, D)

        features, skips = inputs, []
        for index, (layer, level) in enumerate(zip(self.sa_layers, geometry.levels, strict=True)):
            skips.append(features)
            *blocks, abstraction = layer if isinstance(layer, nn.Sequential) else [layer]
            appended = time if index > 0 else None
            for block in blocks:
                features = block(features, level.grids[cast(PVConv, block).resolution], appended)
                appended = None
            features = abstraction(features, level.pairs, level.relative, appended)
        skips[0] = inputs[..., 3:]
        if self.global_att is not None:
            features = self.global_att(features)

        for layer in self.fp_layers:
            level = geometry.levels[len(skips) - 1]
            propagation, *blocks = cast(nn.Sequential, layer)
            features = propagation(features, level.nearest, skips.pop(), time)
            for block in blocks:
                features = block(features, level.grids[cast(PVConv, block).resolution])

        hidden, dropout, last = self.classifier
        convolution = cast(nn.Conv1d, last)
        rows = dropout(hidden(features))
        noise = nn.functional.linear(rows, convolution.weight.flatten(1), convolution.bias)
        return noise.float().transpose(1, 2)
