"""How far an estimated person is from the true one: joints, vertices, depth, and the masks.

Arrays are float64; a number that cannot be had is NaN. Joints: 17 of Human3.6M, pelvis first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# The 14 joints of the common protocol among the 17 of Human3.6M: legs, arms, neck, head.
COMMON_JOINTS = (6, 5, 4, 1, 2, 3, 16, 15, 14, 11, 12, 13, 8, 10)


class Similarity(NamedTuple):
    """Scale, rotation and translation, each with leading dimension N."""

    scale: Array  # (N,)
    rotation: Array  # (N, 3, 3)
    translation: Array  # (N, 3)

    def apply(self, points: Array) -> Array:  # (N, P, 3)
        turned = points @ self.rotation.transpose(0, 2, 1)
        return self.scale[:, None, None] * turned + self.translation[:, None]


def best_similarity(points: Array, targets: Array) -> Similarity:
    """The similarity without reflection that brings points (N, P, 3) closest to the targets."""
    centre, target_centre = points.mean(1), targets.mean(1)
    first, second = points - centre[:, None], targets - target_centre[:, None]
    product = first.transpose(0, 2, 1) @ second  # (N, 3, 3)
    left, _, right = np.linalg.svd(product)
    sign = np.sign(np.linalg.det(left @ right))
    signs = np.stack([np.ones_like(sign), np.ones_like(sign), sign], axis=-1)
    rotation = (right.transpose(0, 2, 1) * signs[:, None]) @ left.transpose(0, 2, 1)
    variance = np.square(first).sum((1, 2))
    scale = np.trace(rotation @ product, axis1=1, axis2=2) / np.where(variance > 0, variance, 1.0)
    translation = target_centre - scale[:, None] * np.einsum("nij,nj->ni", rotation, centre)
    return Similarity(scale, rotation, translation)


def pelvis_centred(joints: Array) -> Array:
    """The 14 common joints (N, 14, 3) of the 17, relative to the pelvis."""
    return np.asarray(joints[:, COMMON_JOINTS, :] - joints[:, :1])


def distances(points: Array, targets: Array) -> Array:
    """Euclidean distances, (N, P)."""
    return np.asarray(np.linalg.norm(points - targets, axis=-1))


def aligned_distances(points: Array, targets: Array) -> Array:
    """Distances (N, P) that the best similarity of each sample leaves."""
    return distances(best_similarity(points, targets).apply(points), targets)


def masked_mean(values: Array, mask: NDArray[np.bool_] | None = None) -> float:
    """One mean over all unmasked values; NaN where there is none."""
    chosen = values if mask is None else values[mask]
    return float(chosen.mean()) if chosen.size else float("nan")


def mask_iou(predicted: NDArray[np.integer], true: NDArray[np.integer]) -> Array:
    """Percent of overlap of person masks, any part counting, (N, H, W) to (N,)."""
    return _percent((predicted != 0) & (true != 0), (predicted != 0) | (true != 0))


def part_iou(predicted: NDArray[np.integer], true: NDArray[np.integer]) -> Array:
    """Percent of overlap with equal part; intersections and unions of all parts add up first."""
    axes = tuple(range(1, predicted.ndim))
    intersection = ((predicted == true) & (true != 0)).sum(axes)
    union = (true != 0).sum(axes) + (predicted != 0).sum(axes) - intersection
    return _ratio(intersection, union)


def _percent(intersection: NDArray[np.bool_], union: NDArray[np.bool_]) -> Array:
    axes = tuple(range(1, intersection.ndim))
    return _ratio(intersection.sum(axes), union.sum(axes))


def _ratio(count: NDArray[np.integer], total: NDArray[np.integer]) -> Array:
    safe = np.where(total > 0, total, 1)
    return np.where(total > 0, 100.0 * count / safe, np.nan)
