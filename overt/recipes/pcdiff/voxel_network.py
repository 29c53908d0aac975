"""Network of the second stage: points of skull and implant to an indicator field of the skull.

Local point features in the cells of a coarse grid, a 3D U-Net over the cells, then displaced copies
of every point with normals, from which a Poisson solve computes the field. Keys are those of the
published code. Letters: B clouds, P points, C width, G cells along a side.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from overt.ops.convolve import convolve_grid
from overt.ops.point_norm.api import norm_grid
from overt.ops.poisson import indicator_field

BLOCKS = 5
OFFSET_UNIT = 0.001  # of the cube's side, for an output of 1
_INSIDE = 1 - 1e-5
_LAST = 0.99  # of the cube: no point reaches around the periodic grid


class ResidualBlock(nn.Module):
    """Residual block of two layers; the second is zero-initialized."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.fc_0 = nn.Linear(width_in, width)
        self.fc_1 = nn.Linear(width, width)
        nn.init.zeros_(self.fc_1.weight)
        self.shortcut = nn.Linear(width_in, width, bias=False) if width_in != width else None

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.fc_1(self.fc_0(x.relu()).relu())
        return change + (x if self.shortcut is None else self.shortcut(x))


class SingleConv(nn.Module):
    """Norm of the input, convolution, ReLU."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.groupnorm = nn.GroupNorm(8, width_in)
        self.conv = nn.Conv3d(width_in, width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        norm = self.groupnorm
        x = norm_grid(x, norm.weight, norm.bias, norm.num_groups)
        return convolve_grid(x, self.conv.weight).relu()


class DoubleConv(nn.Module):
    """Two convolutions; the keys have one more level."""

    def __init__(self, width_in: int, between: int, width: int) -> None:
        super().__init__()
        parts = {"SingleConv1": SingleConv(width_in, between)}
        parts["SingleConv2"] = SingleConv(between, width)
        self.basic_module = nn.Sequential()
        for name, part in parts.items():
            self.basic_module.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.basic_module(x))


class UNet3D(nn.Module):
    """Transform features of cells (B, C, G, G, G); the last layer is linear."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        inputs = [width, *widths[:-1]]
        self.encoders = nn.ModuleList(
            DoubleConv(before, max(before, after // 2), after)
            for before, after in zip(inputs, widths, strict=True)
        )
        pairs = list(zip(widths[-2::-1], widths[:0:-1], strict=True))  # (skip, below)
        self.decoders = nn.ModuleList(DoubleConv(a + b, a, a) for a, b in pairs)
        self.final_conv = nn.Conv3d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for index, encoder in enumerate(self.encoders):
            x = encoder(x if index == 0 else functional.max_pool3d(x, 2))
            skips.append(x)
        skips.pop()
        for decoder in self.decoders:
            skip = skips.pop()
            x = decoder(torch.cat([skip, enlarged(x, skip.shape[2:])], dim=1))
        return cast(Tensor, self.final_conv(x))


def enlarged(x: Tensor, size: torch.Size) -> Tensor:
    """Repeat the cells of (B, C, G, G, G) up to `size`; a grid channels last stays so."""
    if any(big != 2 * small for small, big in zip(x.shape[2:], size, strict=True)):
        return functional.interpolate(x, size=size, mode="nearest")
    cells = x.permute(0, 2, 3, 4, 1)[:, :, None, :, None, :, None]  # (B, G, 1, G, 1, G, 1, C)
    cells = cells.expand(-1, -1, 2, -1, 2, -1, 2, -1)
    return cells.flatten(5, 6).flatten(3, 4).flatten(1, 2).permute(0, 4, 1, 2, 3)


class PointEncoder(nn.Module):
    """Encode points (B, P, 3) of the unit cube as cells (B, C, G, G, G), ordered z, y, x."""

    def __init__(self, width: int, grid: int, levels: int) -> None:
        super().__init__()
        self.grid = grid
        self.fc_pos = nn.Linear(3, 2 * width)
        self.blocks = nn.ModuleList(ResidualBlock(2 * width, width) for _ in range(BLOCKS))
        self.fc_c = nn.Linear(width, width)
        self.unet3d = UNet3D(width, levels)

    def forward(self, points: Tensor) -> Tensor:
        cells = cell_index(points, self.grid)  # (B, P) flat over the batch
        count = len(points) * self.grid**3
        features: Tensor = self.fc_pos(local_coordinate(points, self.grid))
        for index, block in enumerate(self.blocks):
            if index > 0:
                features = torch.cat([features, pool_max(features, cells, count)], dim=2)
            features = block(features)
        features = self.fc_c(features)
        rows = features.flatten(0, 1)
        flat = cells.flatten()
        total = rows.new_zeros((count, rows.shape[1])).index_add(0, flat, rows)
        sizes = rows.new_zeros(count).index_add(0, flat, torch.ones_like(rows[:, 0]))
        mean = total / sizes.clamp(min=1)[:, None]
        shape = (len(points), *(self.grid,) * 3, -1)
        return cast(Tensor, self.unet3d(mean.view(shape).permute(0, 4, 1, 2, 3)))


class PointDecoder(nn.Module):
    """Decode cell features sampled at points, and their coordinates, to `outputs` numbers."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.fc_p = nn.Linear(3, width)
        self.fc_c = nn.ModuleList(nn.Linear(width, width) for _ in range(BLOCKS))
        self.blocks = nn.ModuleList(ResidualBlock(width, width) for _ in range(BLOCKS))
        self.fc_out = nn.Linear(width, outputs)

    def forward(self, coordinates: Tensor, features: Tensor) -> Tensor:
        net: Tensor = self.fc_p(coordinates)
        for layer, block in zip(self.fc_c, self.blocks, strict=True):
            net = block(net + layer(features))
        return cast(Tensor, self.fc_out(net.relu()))


class VoxelNetwork(nn.Module):
    """Predict a field (B, R, R, R) from points (B, P, 3) of the unit cube: bone is below 0."""

    def __init__(
        self, *, width: int, grid: int, levels: int, offsets: int, side: int, sigma: float
    ) -> None:
        super().__init__()
        self.grid, self.offsets, self.side, self.sigma = grid, offsets, side, sigma
        self.encoder = PointEncoder(width, grid, levels)
        self.decoder_normal = PointDecoder(width, 3)
        self.decoder_offset = PointDecoder(width, 3 * offsets)

    def oriented(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return displaced copies of the points and their normals, (B, offsets * P, 3) each."""
        cells = self.encoder(points)
        moves = self.decoder_offset(
            local_coordinate(points, self.grid), read_features(cells, points)
        )
        moves = moves.unflatten(2, (self.offsets, 3))  # (B, P, offsets, 3)
        moved = (points[:, :, None] + OFFSET_UNIT * moves.float()).flatten(1, 2)
        # The normals use global coordinates, before clamping.
        normals = self.decoder_normal(moved, read_features(cells, moved))
        return moved.clamp(0, _LAST), normals

    def forward(self, points: Tensor) -> Tensor:
        moved, normals = self.oriented(points)
        return indicator_field(moved, normals, self.side, self.sigma)


def cell_index(points: Tensor, grid: int) -> Tensor:
    """Return the cell indices (B, P) of points, x fastest, counted over the whole batch."""
    cells = (points.clamp(0, _INSIDE) * grid).floor().long()
    flat = cells[..., 0] + grid * (cells[..., 1] + grid * cells[..., 2])
    first = torch.arange(len(points), device=points.device)[:, None] * grid**3
    return flat + first


def local_coordinate(points: Tensor, grid: int) -> Tensor:
    """Return the position of a point within its cell, in [0, 1)."""
    return torch.remainder(points, 1 / grid) * grid


def pool_max(features: Tensor, cells: Tensor, count: int) -> Tensor:
    """Return for each point (B, P, C) the maximum features of its cell."""
    rows = features.flatten(0, 1)
    index = cells.flatten()[:, None].expand_as(rows)
    largest = rows.new_zeros((count, rows.shape[1]))
    largest = largest.scatter_reduce(0, index, rows, "amax", include_self=False)
    return largest.gather(0, index).view_as(features)


def read_features(cells: Tensor, points: Tensor) -> Tensor:
    """Sample features (B, P, C) of cells (B, C, G, G, G) at points, trilinear.

    The first and last cells are at the ends of the cube, as published.
    """
    at = 2 * points.clamp(0, _INSIDE).to(cells.dtype) - 1
    read = functional.grid_sample(
        cells, at[:, :, None, None], padding_mode="border", align_corners=True
    )
    return read[..., 0, 0].transpose(1, 2)
