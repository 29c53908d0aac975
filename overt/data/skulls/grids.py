"""Grids of synthetic skulls: coordinates of the head in every voxel, smooth noise, simple solids.

Coordinates are those of the head (x left, y back, z up) in mm around the center of the vault.
Smooth fields are computed at nodes 3 mm apart and interpolated, so their cost does not depend on
the voxels, nor does the shape. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

HEAD_MM = 200.0  # the length of the volume, whatever its voxels
MIDDLE_MM = (0.0, 2.0, 10.0)  # of the vault in the volume, from the volume's center
NODES = 65  # along a side
NODE_MM = HEAD_MM / (NODES - 1)
_NOISE_STD = 0.33  # of cubic splines through normal values

Field = NDArray[np.float32]  # (x, y, z)
Point = tuple[float, float, float]


@dataclass(frozen=True)
class Grid:
    """Coordinates in mm of the head, at voxels or nodes, and where these are in the volume."""

    x: Field
    y: Field
    z: Field
    axes: tuple[Field, Field, Field]  # mm along each axis of the volume, from its center
    voxel_mm: float

    @property
    def aside(self) -> Field:
        """Return the distance from the midline: what is symmetric is computed with it."""
        return np.abs(self.x)

    def fill(self, nodes: Field) -> Field:
        """Interpolate a field given at all nodes linearly."""
        weights = [_linear(axis) for axis in self.axes]
        return _product(nodes, weights)

    def noise(self, rng: np.random.Generator, scale_mm: float) -> Field:
        """Return smooth noise of variance about 1 whose features are `scale_mm` apart."""
        count = int(np.ceil(HEAD_MM / scale_mm)) + 3
        values = (rng.standard_normal((count,) * 3) / _NOISE_STD).astype(np.float32)
        return _product(values, [_cubic(axis, count) for axis in self.axes])

    def box(self, low: Point, high: Point) -> tuple[slice, slice, slice]:
        """Return the voxels between two corners in mm from the center of the vault.

        Corners are in the volume, which a tilted head leaves: boxes need a margin.
        """
        ends = []
        for axis, middle, first, last in zip(self.axes, MIDDLE_MM, low, high, strict=True):
            start, stop = np.searchsorted(axis, [first + middle, last + middle])
            ends.append(slice(int(start), int(stop)))
        return ends[0], ends[1], ends[2]

    def crop(self, box: tuple[slice, slice, slice]) -> Grid:
        """Return the part of the grid in a box of voxels."""
        x, y, z = (axis[part] for axis, part in zip(self.axes, box, strict=True))
        return replace(self, x=self.x[box], y=self.y[box], z=self.z[box], axes=(x, y, z))


def node_grid(turn: NDArray[np.float64], shift: Sequence[Field] | None = None) -> Grid:
    """Return the nodes of the volume in a rotated and, by `shift` in mm, deformed head."""
    axis = np.linspace(-HEAD_MM / 2, HEAD_MM / 2, NODES).astype(np.float32)
    mesh = np.meshgrid(*(axis - np.float32(middle) for middle in MIDDLE_MM), indexing="ij")
    x, y, z = np.tensordot(turn.astype(np.float32), np.stack(mesh), axes=1)
    if shift is not None:
        x, y, z = (position + added for position, added in zip((x, y, z), shift, strict=True))
    return Grid(x, y, z, (axis, axis, axis), NODE_MM)


def voxel_grid(nodes: Grid, side: int) -> Grid:
    """Return the centers of voxels in the head of these nodes."""
    voxel = HEAD_MM / side
    axis = ((np.arange(side) + 0.5) * voxel - HEAD_MM / 2).astype(np.float32)
    empty = replace(nodes, axes=(axis, axis, axis), voxel_mm=voxel)
    return replace(empty, x=empty.fill(nodes.x), y=empty.fill(nodes.y), z=empty.fill(nodes.z))


def _product(values: Field, weights: Sequence[Field]) -> Field:
    """Return values (a, b, c) times the weights (n, a), (m, b), (k, c) of each axis."""
    for weight in weights:
        # Each product moves the first axis to the end: after three they are in order again.
        rows = values.reshape(len(values), -1).T @ weight.T
        values = rows.reshape(*values.shape[1:], len(weight))
    return np.ascontiguousarray(values, dtype=np.float32)


def _linear(axis: Field) -> Field:
    position = (axis + HEAD_MM / 2) / NODE_MM
    away = np.abs(position[:, None] - np.arange(NODES))
    return np.asarray(np.maximum(1 - away, 0), dtype=np.float32)


def _cubic(axis: Field, count: int) -> Field:
    """Return the weights (n, count) of uniform cubic B-splines that cover the volume."""
    position = (axis + HEAD_MM / 2) / HEAD_MM * (count - 3) + 1
    away = np.abs(position[:, None] - np.arange(count))
    near = 2 / 3 - away**2 + away**3 / 2
    far = np.maximum(2 - away, 0) ** 3 / 6
    return np.asarray(np.where(away < 1, near, far), dtype=np.float32)


def rotation(degrees: Sequence[float]) -> NDArray[np.float64]:
    """Return the rotation (3, 3) around x (nodding), y (to a shoulder) and z (to a side)."""
    matrix = np.eye(3)
    for axis, angle in enumerate(np.deg2rad(degrees)):
        step = np.eye(3)
        i, j = (axis + 1) % 3, (axis + 2) % 3
        step[i, i] = step[j, j] = np.cos(angle)
        step[i, j], step[j, i] = -np.sin(angle), np.sin(angle)
        matrix = step @ matrix
    return matrix


def ellipsoid(at: Grid, center: Point, radii: Point, power: float = 2.0) -> Field:
    """Return the approximate distance in mm outside a pair of ellipsoids, one on each side.

    A power above 2 makes boxes with rounded edges.
    """
    coordinates = (at.aside, at.y, at.z)
    parts = [
        np.abs((p - np.float32(c)) / np.float32(r)) ** power
        for p, c, r in zip(coordinates, center, radii, strict=True)
    ]
    norm = (parts[0] + parts[1] + parts[2]) ** (1 / power)
    return np.asarray((norm - 1) * np.float32(min(radii)), dtype=np.float32)


def tube(at: Grid, points: Sequence[Point], flat: Point = (1.0, 1.0, 1.0)) -> Field:
    """Return the distance in mm to a polyline and its mirror image.

    Distances along each axis are multiplied by `flat`: above 1 the tube is thinner there.
    """
    scale = np.array(flat)
    coordinates = [p * np.float32(f) for p, f in zip((at.aside, at.y, at.z), flat, strict=True)]
    nearest: Field | None = None
    for first, last in pairwise(points):
        start, along = np.array(first) * scale, (np.array(last) - np.array(first)) * scale
        offset = [p - np.float32(s) for p, s in zip(coordinates, start, strict=True)]
        step = [np.float32(a) for a in along / (along @ along)]
        ahead = np.clip(offset[0] * step[0] + offset[1] * step[1] + offset[2] * step[2], 0, 1)
        squares = [(o - ahead * np.float32(a)) ** 2 for o, a in zip(offset, along, strict=True)]
        square = squares[0] + squares[1] + squares[2]
        nearest = square if nearest is None else np.minimum(nearest, square)
    assert nearest is not None
    return np.asarray(np.sqrt(nearest), dtype=np.float32)
