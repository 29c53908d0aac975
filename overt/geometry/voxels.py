"""Binary volumes: exact distances, surfaces and boxes.

Spacing is the size of a voxel along each axis. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
HAS_SCIPY = find_spec("scipy") is not None


def surface(mask: Mask) -> Mask:
    """Voxels of the mask with a face neighbor outside it, or at the face of the volume."""
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
        other_axes = tuple(other for other in range(3) if other != axis)
        occupied = np.flatnonzero(mask.any(axis=other_axes))
        first, last = int(occupied[0]) - margin[axis], int(occupied[-1]) + margin[axis] + 1
        box.append(slice(max(first, 0), min(last, mask.shape[axis])))
    return tuple(box)


def largest_part(mask: Mask) -> Mask:
    """The largest of the parts that no face connects; the mask itself without SciPy."""
    if not HAS_SCIPY:
        return mask
    from scipy.ndimage import label

    labels, count = label(mask)
    if count <= 1:
        return mask
    return np.asarray(labels == np.bincount(labels.ravel())[1:].argmax() + 1)


def distance_to(mask: Mask, spacing: Sequence[float]) -> NDArray[np.float64]:
    """The exact distance of every voxel to the nearest of the mask; by SciPy where it is there."""
    if HAS_SCIPY and mask.any():
        from scipy.ndimage import distance_transform_edt

        distances: NDArray[np.float64] = distance_transform_edt(~mask, sampling=spacing)
        return distances
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
