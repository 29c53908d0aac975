"""Implants cut out of an indicator field of the complete skull: negative inside bone.

Needs SciPy. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.geometry.voxels import Mask

_REACH = 1.1  # of the furthest implant point from their center, as published
_MARGIN = 3  # voxels around the implant's points

Points = NDArray[np.floating[Any]]


class ScanGrid(NamedTuple):
    """The voxels that an implant is wanted in."""

    skull: Mask  # the defective skull
    spacing: Sequence[float]  # mm
    to_indices: Callable[[Points], Points]  # of this grid, from the coordinates of clouds; affine


def implant_of_field(
    field: NDArray[np.floating[Any]],  # (R, R, R), node i at i / R
    implant: Points,  # (K, 3) in the coordinates of clouds
    to_unit: Callable[[Points], Points],  # from the coordinates of clouds to the unit cube
    grid: ScanGrid,
) -> Mask:
    """Return the voxels that are bone in the field, not in the skull, and near implant points."""
    from scipy.ndimage import map_coordinates

    volume = np.zeros(grid.skull.shape, dtype=bool)
    points_at = grid.to_indices(implant)  # (K, 3)
    low = np.maximum(np.floor(points_at.min(axis=0)).astype(int) - _MARGIN, 0)
    high = np.minimum(np.ceil(points_at.max(axis=0)).astype(int) + _MARGIN + 1, volume.shape)
    if (high <= low).any():
        return volume
    box = tuple(slice(int(a), int(b)) for a, b in zip(low, high, strict=True))
    # The way back from an affine map, by what it does to the axes.
    origin = grid.to_indices(np.zeros(3))
    matrix = np.stack([grid.to_indices(axis) - origin for axis in np.eye(3)], axis=1)
    indices = np.stack(np.meshgrid(*(np.arange(p.start, p.stop) for p in box), indexing="ij"), -1)
    nodes = to_unit((indices - origin) @ np.linalg.inv(matrix).T) * len(field)  # (x, y, z, 3)
    values = map_coordinates(field, np.moveaxis(nodes, -1, 0), order=1, mode="nearest")
    spacing = np.asarray(grid.spacing)
    center = points_at.mean(axis=0)
    reach = _REACH * np.linalg.norm((points_at - center) * spacing, axis=1).max()
    near = np.linalg.norm((indices - center) * spacing, axis=-1) <= reach
    volume[box] = (values <= 0) & near & ~grid.skull[box]
    return volume
