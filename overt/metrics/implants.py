"""How well an implant fits: overlap, overlap near the skull, and distances between surfaces.

Masks are boolean volumes of one shape; spacing is the size of a voxel along each axis, in mm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from overt.geometry.voxels import Mask, bounding_box, distance_to, surface


def dice(first: Mask, second: Mask) -> float:
    """2 |A and B| / (|A| + |B|); 0 where both are empty."""
    total = int(first.sum()) + int(second.sum())
    return 2.0 * int((first & second).sum()) / total if total else 0.0


def border_dice(
    predicted: Mask, truth: Mask, skull: Mask, spacing: Sequence[float], border_mm: float = 10.0
) -> float:
    """`dice` of what lies within `border_mm` of the defective skull."""
    both = predicted | truth
    if not both.any():
        return 0.0
    # Beyond the border the exact distance does not matter: look no further than that.
    margin = [int(np.ceil(border_mm / step)) + 1 for step in spacing]
    box = bounding_box(both, margin)
    if not skull[box].any():
        return 0.0
    near = distance_to(skull[box], spacing) <= border_mm
    return dice(predicted[box] & near, truth[box] & near)


def surface_distances(first: Mask, second: Mask, spacing: Sequence[float]) -> NDArray[np.float64]:
    """From every surface voxel of either mask to the nearest of the other; both ways pooled."""
    if not first.any() or not second.any():
        raise ValueError("distances between surfaces need two masks that are not empty")
    box = bounding_box(first | second)
    ours, theirs = surface(first)[box], surface(second)[box]
    return np.concatenate([distance_to(theirs, spacing)[ours], distance_to(ours, spacing)[theirs]])


def implant_scores(
    predicted: Mask, truth: Mask, skull: Mask, spacing: Sequence[float], border_mm: float = 10.0
) -> dict[str, float]:
    """DSC and bDSC, and in mm HD95, ASSD and HD; these are NaN where a mask is empty."""
    scores = {
        "dsc": dice(predicted, truth),
        "bdsc": border_dice(predicted, truth, skull, spacing, border_mm),
    }
    if not predicted.any() or not truth.any():
        return scores | dict.fromkeys(("hd95", "assd", "hd"), float("nan"))
    distances = surface_distances(predicted, truth, spacing)
    return scores | {
        "hd95": float(np.percentile(distances, 95)),
        "assd": float(distances.mean()),
        "hd": float(distances.max()),
    }
