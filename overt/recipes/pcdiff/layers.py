"""The blocks of the point-voxel network, with the parameter names of the published checkpoints.

Letters: B clouds, N points, M centers, P pairs, V voxels, C channels. Features are rows, (B, N, C).
Parameters are stored in convolutions, as in the checkpoints; a convolution of size 1 is computed as
a matrix product. `time`, (B, D), is the same at every point and is never expanded. A layer before
a norm leaves its bias to the norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overt.ops.attention.api import attention
from overt.ops.convolve import convolve_grid
from overt.ops.point_norm.api import norm_swish, norm_swish_max, norm_swish_pairs
from overt.ops.point_pairs.plain import Pairs
from overt.ops.point_rows.api import mix_rows
from overt.ops.point_voxels.api import VoxelGrid, average_voxels, read_voxels
from overt.recipes.pcdiff.geometry import Nearest

GROUPS = 8  # of every group normalization
SE_REDUCTION = 8


class Swish(nn.Module):
    """Keeps an index in a checkpoint's numbering; it is computed with the norm before it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x)


def normalized(rows: Tensor, norm: nn.GroupNorm, constant: Tensor | None = None) -> Tensor:
    """swish(norm(rows + constant)) of rows (B, R, C) and a constant (C,) or (B, C)."""
    return norm_swish(rows, norm.weight, norm.bias, norm.num_groups, constant)


def matrix(conv: nn.Module) -> Tensor:
    """The weights (out, in) of a convolution of size 1."""
    weight = cast(Tensor, conv.weight)
    return weight.flatten(1)


def with_time(
    convolution: nn.Conv1d | nn.Conv2d, features: Tensor, time: Tensor | None, start: int = 0
) -> tuple[Tensor, Tensor]:
    """Apply a size-1 convolution to features (channels from `start` on), then to `time`.

    Returns rows (B, N, C), and what is to be added to all of a cloud, (C,) or (B, C).
    """
    weight, stop = matrix(convolution), start + features.shape[2]
    rows, bias = F.linear(features, weight[:, start:stop]), cast(Tensor, convolution.bias)
    return rows, bias if time is None else F.linear(time, weight[:, stop:], bias)


class SharedMLP(nn.Module):
    """Layers of convolution of size 1, group norm and swish: `layers.{3i}`, `layers.{3i + 1}`."""

    def __init__(self, width: int, widths: Sequence[int], dimensions: int = 1) -> None:
        super().__init__()
        convolution = nn.Conv1d if dimensions == 1 else nn.Conv2d
        layers: list[nn.Module] = []
        for out in widths:
            layers += [convolution(width, out, 1), nn.GroupNorm(GROUPS, out), Swish()]
            width = out
        self.layers = nn.Sequential(*layers)

    def steps(self) -> list[tuple[nn.Conv1d | nn.Conv2d, nn.GroupNorm]]:
        """Convolution and norm of each layer."""
        layers = list(self.layers)
        return [
            (cast(nn.Conv1d, convolution), cast(nn.GroupNorm, norm))
            for convolution, norm in zip(layers[::3], layers[1::3], strict=True)
        ]

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (B, N, C) to (B, N, C')."""
        for convolution, norm in self.steps():
            rows = normalized(F.linear(rows, matrix(convolution)), norm, convolution.bias)
        return rows


class SqueezeExcite(nn.Module):
    """A gate between 0 and 1 for every channel, computed from the means of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(channels, channels // SE_REDUCTION, bias=False),
            nn.ReLU(),
            nn.Linear(channels // SE_REDUCTION, channels, bias=False),
            nn.Sigmoid(),
        )

    def gate(self, rows: Tensor) -> Tensor:
        """Of rows (B, V, C): (B, 1, C)."""
        gate: Tensor = self.fc(rows.mean(1, keepdim=True, dtype=torch.float32))
        return gate

    def forward(self, rows: Tensor) -> Tensor:
        return rows * self.gate(rows)


class Attention(nn.Module):
    """swish(norm(x + attention(x))): one head over all channels, logits without a scale."""

    def __init__(self, channels: int, dimensions: int) -> None:
        super().__init__()
        convolution = nn.Conv1d if dimensions == 1 else nn.Conv3d
        self.q = convolution(channels, channels, 1)
        self.k = convolution(channels, channels, 1)
        self.v = convolution(channels, channels, 1)
        self.out = convolution(channels, channels, 1)
        self.norm = nn.GroupNorm(GROUPS, channels)

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (B, R, C) to (B, R, C)."""
        query, key, value = (
            F.linear(rows, matrix(part), part.bias).unsqueeze(1)
            for part in (self.q, self.k, self.v)
        )  # (B, 1, R, C)
        mixed = attention(query, key, value, scale=1.0).squeeze(1)
        return normalized(rows + F.linear(mixed, matrix(self.out)), self.norm, self.out.bias)


class PVConv(nn.Module):
    """Convolve voxel averages, sample them at the points, and add a layer on the points."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        resolution: int,
        *,
        dropout: float | None,
        attention: bool = False,
        squeeze_excite: bool = True,
    ) -> None:
        super().__init__()
        self.resolution = resolution
        layers: list[nn.Module] = [
            nn.Conv3d(in_channels, out_channels, 3, padding=1),
            nn.GroupNorm(GROUPS, out_channels),
            Swish(),
        ]
        if dropout is not None:  # 0 keeps its place in the numbering
            layers.append(nn.Dropout(dropout))
        layers += [
            nn.Conv3d(out_channels, out_channels, 3, padding=1),
            nn.GroupNorm(GROUPS, out_channels),
            Attention(out_channels, dimensions=3) if attention else Swish(),
        ]
        if squeeze_excite:
            layers.append(SqueezeExcite(out_channels))
        self.voxel_layers = nn.Sequential(*layers)
        self.point_features = SharedMLP(in_channels, [out_channels])

    def forward(self, features: Tensor, grid: VoxelGrid, time: Tensor | None = None) -> Tensor:
        """Features (B, N, C) to (B, N, C'); `time` is appended to the features of every point."""
        ((layer, norm),) = self.point_features.steps()
        rows, constant = with_time(layer, features, time)
        point_features = normalized(rows, norm, constant)
        voxels = average_voxels(features, grid)
        if time is not None:
            # The mean of a constant is the constant if the voxel has a point, and 0 elsewhere.
            spread = (grid.occupied * time[:, None]).to(voxels.dtype)
            voxels = torch.cat([voxels, spread], dim=2)
        values, gate = self.convolve(voxels)
        at_points = read_voxels(values, grid)
        # Sampling is linear, so the gate of a channel can be applied after it.
        if gate is not None:
            at_points = at_points * gate.to(at_points.dtype)
        return at_points + point_features

    def convolve(self, voxels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Convolve voxels (B, V, C) to (B, V, C'), and return their gate (B, 1, C')."""
        layers = list(self.voxel_layers)
        first = cast(nn.Conv3d, layers[0])
        voxels = self.convolution(voxels, first.weight)
        voxels = normalized(voxels, cast(nn.GroupNorm, layers[1]), first.bias)
        remaining_layers = layers[3:]
        if isinstance(remaining_layers[0], nn.Dropout):
            voxels = remaining_layers.pop(0)(voxels)
        second, norm, activation, *gates = remaining_layers
        weight, bias = cast(Tensor, second.weight), cast(Tensor, second.bias)
        if isinstance(activation, Attention):
            voxels = self.convolution(voxels, weight, bias)
            group = cast(nn.GroupNorm, norm)
            voxels = F.group_norm(
                voxels.transpose(1, 2), group.num_groups, group.weight, group.bias, group.eps
            ).transpose(1, 2)
            voxels = activation(voxels)
        else:
            voxels = self.convolution(voxels, weight)
            voxels = normalized(voxels, cast(nn.GroupNorm, norm), bias)
        return voxels, cast(SqueezeExcite, gates[0]).gate(voxels) if gates else None

    def convolution(self, voxels: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Convolve rows (B, V, C), viewed as a channels-last grid without a copy."""
        side = self.resolution
        grid = torch.unflatten(voxels, 1, (side, side, side)).permute(0, 4, 1, 2, 3)
        result = convolve_grid(grid, weight, bias)
        return result.permute(0, 2, 3, 4, 1).flatten(1, 3)


class SetAbstraction(nn.Module):
    """Features of centers: max pooling over an MLP of their neighbors.

    The first layer is a sum of two parts: one of the neighbor's own features, computed once per
    point, and one of its position relative to the center.
    """

    def __init__(self, in_channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.mlps = nn.ModuleList([SharedMLP(in_channels + 3, widths, dimensions=2)])

    def forward(
        self,
        features: Tensor,  # (B, N, C)
        pairs: Pairs,
        relative: Tensor,  # (P, 3)
        time: Tensor | None = None,  # (B, D), appended to the features of every point
    ) -> Tensor:
        """Features of the centers, (B, M, C')."""
        (first, norm), *remaining_steps = cast(SharedMLP, self.mlps[0]).steps()
        point_features, constant = with_time(first, features, time, start=3)
        rows = mix_rows(point_features.flatten(0, 1), pairs.points[:, None], lists=pairs.lists)
        rows = torch.addmm(rows, relative.to(rows.dtype), matrix(first)[:, :3].to(rows.dtype).T)
        for layer, following in remaining_steps:
            rows = norm_swish_pairs(rows, norm.weight, norm.bias, GROUPS, pairs, constant)
            rows, norm = F.linear(rows, matrix(layer)), following
            constant = cast(Tensor, layer.bias)
        values = norm_swish_max(rows, norm.weight, norm.bias, GROUPS, pairs, constant)
        return torch.unflatten(values, 0, (pairs.batch, -1))


class FeaturePropagation(nn.Module):
    """Features of points, from those of the three nearest centers and their own.

    The first layer is applied to the centers, which are fewer, before interpolation: both are
    linear.
    """

    def __init__(self, in_channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.mlp = SharedMLP(in_channels, widths)

    def forward(
        self,
        features: Tensor,  # (B, M, C)
        nearest: Nearest,
        skip: Tensor,  # (B, N, C'') features that the points have already; may have no channels
        time: Tensor | None = None,  # (B, D), appended to the features of every center
    ) -> Tensor:
        """Features of the points, (B, N, C')."""
        (first, norm), *remaining_steps = self.mlp.steps()
        weight, channels = matrix(first), features.shape[2]
        center_features = F.linear(features, weight[:, :channels])
        rows = mix_rows(center_features.flatten(0, 1), nearest.rows, nearest.weights, nearest.lists)
        rows = torch.unflatten(rows, 0, (len(features), -1))
        constant = cast(Tensor, first.bias)
        if time is not None:
            width = channels + time.shape[1]
            constant = F.linear(time, weight[:, channels:width], first.bias)
            channels = width
        if skip.shape[2] > 0:
            rows = rows + F.linear(skip, weight[:, channels:])
        rows = normalized(rows, norm, constant)
        for layer, following in remaining_steps:
            rows = normalized(F.linear(rows, matrix(layer)), following, layer.bias)
        return rows
