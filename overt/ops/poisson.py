"""Points with normals to an indicator field: a differentiable Poisson solve on a periodic grid.

Outside is +0.5, inside -0.5, the surface 0. Letters: B clouds, P points, R nodes along a side; node
i is at i / R, points are in [0, 1).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LEAST = 1e-6  # of the divisor, and of the field at the corner


def indicator_field(points: Tensor, normals: Tensor, side: int, sigma: float) -> Tensor:
    """Return the field (B, R, R, R) of points (B, P, 3) whose outward normals are (B, P, 3).

    The length of a normal is the area that its point stands for; `sigma` is the width of the
    smoothing, sigma / pi nodes in space whatever the side.
    """
    with torch.autocast(points.device.type, enabled=False):
        points, normals = points.float(), normals.float()
        index, weight = corners(points, side)  # (B, P, 8)
        field = solve(splat(normals, index, weight, side), sigma)
        flat = field.flatten(1)
        read = flat.gather(1, index.flatten(1)).view_as(weight)
        level = (read * weight).sum(dim=2).mean(dim=1)  # (B,) at the points
        flat = flat - level[:, None]
        # The first node is far outside. Published is -0.5 / |corner|, the same for outward normals;
        # with it, normals that start out inward give a flipped field and training stays there.
        corner = flat[:, :1]
        corner = torch.where(corner.abs() < _LEAST, -_LEAST, corner)
        return (flat * (0.5 / corner)).view_as(field)


def corners(points: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Return the nodes around points (B, P, 3), as flat indices, and their weights: (B, P, 8)."""
    scaled = points * side
    low = scaled.floor()
    fraction = scaled - low
    first = low.long()
    indices, weights = [], []
    for corner in range(8):
        bits = [corner >> 2 & 1, corner >> 1 & 1, corner & 1]
        weight = torch.ones_like(fraction[..., 0])
        index = torch.zeros_like(first[..., 0])
        for axis, bit in enumerate(bits):
            part = fraction[..., axis]
            weight = weight * (part if bit else 1 - part)
            index = index * side + (first[..., axis] + bit) % side
        indices.append(index)
        weights.append(weight)
    return torch.stack(indices, dim=2), torch.stack(weights, dim=2)


def splat(normals: Tensor, index: Tensor, weight: Tensor, side: int) -> Tensor:
    """Add normals (B, P, 3) to the nodes around their points: (B, 3, R, R, R)."""
    batch = len(normals)
    first = torch.arange(batch, device=normals.device)[:, None] * side**3
    total = normals.new_zeros((batch * side**3, 3))
    for corner in range(8):
        rows = normals * weight[:, :, corner, None]
        total = total.index_add(0, (index[:, :, corner] + first).flatten(), rows.flatten(0, 1))
    return total.view(batch, side, side, side, 3).permute(0, 4, 1, 2, 3)


def solve(vectors: Tensor, sigma: float) -> Tensor:
    """Return the field (B, R, R, R) whose gradient is nearest to smoothed vectors, negated."""
    side = vectors.shape[-1]
    frequencies = torch.fft.fftfreq(side, 1 / side, device=vectors.device)
    half = torch.fft.rfftfreq(side, 1 / side, device=vectors.device)
    shapes = ((-1, 1, 1), (1, -1, 1), (1, 1, -1))
    waves = [
        k.view(shape) for k, shape in zip((frequencies, frequencies, half), shapes, strict=True)
    ]
    spectrum = torch.fft.rfftn(vectors, dim=(-3, -2, -1))  # (B, 3, R, R, R / 2 + 1)
    divergence = sum(
        (2 * math.pi * wave * spectrum[:, axis] for axis, wave in enumerate(waves)),
        torch.zeros_like(spectrum[:, 0]),
    )
    squares = waves[0] ** 2 + waves[1] ** 2 + waves[2] ** 2
    smoothing = torch.exp(-0.5 * (2 * sigma / side) ** 2 * squares)
    factor = smoothing / (-((2 * math.pi) ** 2) * squares + _LEAST)
    factor = torch.where(squares == 0, 0.0, factor)
    field: Tensor = torch.fft.irfftn(-1j * divergence * factor, s=(side,) * 3, dim=(-3, -2, -1))
    return field
