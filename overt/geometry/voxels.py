"""Binary volumes: exact distances, surfaces, boxes, and a solid from points on its surface.

Spacing is the size of a voxel along each axis. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
HAS_SCIPY = find_spec("scipy") is not None


def surface(mask: Mask) -> Mask:
    """Voxels of the mask with a face neighbour outside it, or at the face of the volume."""
    inner = mask.copy()
    for axis in range(3):
        ahead = np.moveaxis(mask, axis, 0)
        target = np.moveaxis(inner, axis, 0)
        target[1:] &= ahead[:-1]
        target[:-1] &= ahead[1:]
        target[[0, -1]] = False
    return mask & ~inner


def bounding_box(mask: Mask, margin: Sequence[int] = (0, 0, 0)) -> tuple[slice, ...]:
    """The smallest box around a mask that is not empty, and a margin."""
    box = []
    for axis in range(3):
        others = tuple(other for other in range(3) if other != axis)
        places = np.flatnonzero(mask.any(axis=others))
        first, last = int(places[0]) - margin[axis], int(places[-1]) + margin[axis] + 1
        box.append(slice(max(first, 0), min(last, mask.shape[axis])))
    return tuple(box)


def distance_to(mask: Mask, spacing: Sequence[float]) -> NDArray[np.float64]:
    """The exact distance of every voxel to the nearest of the mask; by SciPy where it is there."""
    if HAS_SCIPY and mask.any():
        from scipy.ndimage import distance_transform_edt

        found: NDArray[np.float64] = distance_transform_edt(~mask, sampling=spacing)
        return found
    return distance_to_plain(mask, spacing)


def distance_to_plain(mask: Mask, spacing: Sequence[float]) -> NDArray[np.float64]:
    """The same without SciPy: the least of d[j] + (i - j)^2 along one axis after the other."""
    squares = np.where(mask, 0.0, np.inf)
    for axis in range(3):
        before = np.moveaxis(squares, axis, 0)
        best = before.copy()
        for step in range(1, len(before)):
            added = (step * spacing[axis]) ** 2
            np.minimum(best[step:], before[:-step] + added, out=best[step:])
            np.minimum(best[:-step], before[step:] + added, out=best[:-step])
        squares = np.moveaxis(best, 0, axis)
    return np.sqrt(squares)


def solid_of_points(
    points: NDArray[np.floating[Any]],  # (points, 3) in voxels
    shape: tuple[int, ...],
    radius: float,
) -> Mask:
    """The solid whose surface the points lie on: grown together by `radius` voxels, then shrunk.

    The points of a cloud lie just outside the solid: it is shrunk by half a voxel more.
    """
    mask = np.zeros(shape, dtype=bool)
    places = np.round(points).astype(int)
    inside = ((places >= 0) & (places < shape)).all(axis=1)
    if not inside.any():
        return mask
    mask[tuple(places[inside].T)] = True
    margin = int(np.ceil(radius)) + 2
    box = bounding_box(mask, (margin,) * 3)
    # Growing goes beyond the volume's face; shrinking must not start from there.
    part = np.pad(mask[box], margin)
    grown = distance_to(part, (1.0, 1.0, 1.0)) <= radius
    solid = distance_to(~grown, (1.0, 1.0, 1.0)) > radius + 0.5
    mask[:] = False
    inner = (slice(margin, -margin),) * 3
    mask[box] = solid[inner]
    return mask


def solid_of_votes(
    clouds: NDArray[np.floating[Any]],  # (n, points, 3) in voxels
    occupied: Mask,
    radius: float,
) -> Mask:
    """Where at least half of the clouds are solid and nothing else is."""
    votes = np.zeros(occupied.shape, dtype=np.int32)
    for points in clouds:
        votes += solid_of_points(points, occupied.shape, radius)
    return np.asarray((votes >= (len(clouds) + 1) // 2) & ~occupied)
