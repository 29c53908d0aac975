"""Implants made fit for printing, and what a surgeon asks about them: thickness, gaps, volume.

Needs SciPy. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError
from overt.geometry.solid import vertex_normals
from overt.geometry.voxels import Mask, bounding_box, distance_to

_LONGEST_MM = 25.0  # walls are followed no further
_STEP_MM = 0.2

Points = NDArray[np.floating[Any]]
Faces = NDArray[np.int64]


class Finished(NamedTuple):
    implant: Mask
    changed: dict[str, int]  # voxels that each treatment added (+) or took away (-)


def finish(
    implant: Mask, skull: Mask, spacing: Sequence[float], clearance_mm: float = 0.0
) -> Finished:
    """Return the largest part of an implant without holes, at a distance from the skull.

    Every treatment is counted, so that a mostly repaired implant is noticed before it is printed.
    """
    try:
        from scipy.ndimage import binary_fill_holes, binary_opening, label
    except ImportError as error:
        raise DataError(
            "implants are finished with SciPy, which is not installed; pip install 'overt[skulls]'"
        ) from error

    changed: dict[str, int] = {}
    if not implant.any():
        return Finished(implant, changed)
    whole = np.zeros_like(implant)
    margin = [int(np.ceil(clearance_mm / step)) + 2 for step in spacing]
    box = bounding_box(implant, margin)
    current, occupied = implant[box], skull[box]

    def keep(name: str, after: Mask) -> Mask:
        changed[name] = int(after.sum()) - int(current.sum())
        return after

    # Threads and specks of one voxel are noise of the points; a wall of two voxels stays.
    opened = binary_opening(current, np.ones((2, 2, 2)))
    current = keep("specks", opened if opened.any() else current)
    labels, count = label(current)
    if count > 1:
        current = keep("parts", labels == np.bincount(labels.ravel())[1:].argmax() + 1)
    current = keep("holes", binary_fill_holes(current) & ~occupied)
    if clearance_mm > 0 and occupied.any():
        current = keep("clearance", current & (distance_to(occupied, spacing) > clearance_mm))
    whole[box] = current
    return Finished(whole, changed)


def wall_thickness(
    vertices: Points,  # (V, 3) in mm
    faces: Faces,
    implant: Mask,
    to_indices: Callable[[Points], Points],
) -> NDArray[np.float64]:
    """Return how many mm of implant are below each vertex, along the inward normal: (V,)."""
    inward = -vertex_normals(vertices, faces)
    thickness = np.zeros(len(vertices))
    inside = np.ones(len(vertices), dtype=bool)
    for depth in np.arange(_STEP_MM, _LONGEST_MM, _STEP_MM):
        indices = np.round(to_indices(vertices + inward * depth)).astype(int)
        valid = ((indices >= 0) & (indices < implant.shape)).all(axis=1)
        hit = np.zeros(len(vertices), dtype=bool)
        hit[valid] = implant[tuple(indices[valid].T)]
        # The first millimeter may still be above the steps of the mask.
        inside &= hit | (depth < 1.0)
        thickness[inside & hit] = depth
        if not inside.any():
            break
    return thickness


def measures(implant: Mask, skull: Mask, spacing: Sequence[float]) -> dict[str, float]:
    """Return volume, extent and distances to the skull of an implant."""
    voxel = float(np.prod(spacing))
    result = {"volume_cm3": float(implant.sum()) * voxel / 1000}
    if not implant.any():
        return result
    box = bounding_box(implant, [int(np.ceil(12 / step)) for step in spacing])
    sizes = np.ptp(np.argwhere(implant), axis=0) + 1
    result |= {
        f"extent_{axis}_mm": float(n * s) for axis, n, s in zip("ijk", sizes, spacing, strict=True)
    }
    if skull[box].any():
        distance = distance_to(skull[box], spacing)[implant[box]]
        result["gap_to_skull_mm"] = float(distance.min())
        result["furthest_from_skull_mm"] = float(distance.max())
    return result
