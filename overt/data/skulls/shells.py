"""Shells instead of skulls, for tests and small recipes: coarse, quick and deterministic.

A shell is a bumpy ellipsoid with an opening below; a defect is what a ball removes from it. Never
imports torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from overt.geometry.voxels import Mask

# Positions of the defects of each kind, as a direction from the center (x right, y back, z up), and
# their size as a fraction of the head.
_DEFECTS = {
    "bilateral": ((0.0, 0.0, 1.0), 0.30),
    "frontoorbital": ((0.0, -1.0, 0.45), 0.27),
    "parietotemporal": ((1.0, 0.2, 0.6), 0.28),
    "random_1": (None, 0.25),
    "random_2": (None, 0.25),
}


def _directions(side: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each voxel's distance from the center, relative to the side, and direction."""
    centers = (np.indices((side, side, side)) + 0.5) / side - 0.5  # (3, x, y, z)
    distance = np.sqrt((centers**2).sum(axis=0))
    return distance, centers / np.maximum(distance, 1e-9)


def make_shell(rng: np.random.Generator, side: int) -> Mask:
    """Return an ellipsoidal shell with gentle bumps, open below."""
    distance, direction = _directions(side)
    axes = np.array([0.34, 0.42, 0.37]) * rng.uniform(0.92, 1.06, 3)
    radius = 1 / np.sqrt((direction**2 / axes[:, None, None, None] ** 2).sum(axis=0))
    for _ in range(4):
        wave = rng.normal(size=3)
        wave *= rng.uniform(2.0, 4.0) / np.linalg.norm(wave)
        phase = np.tensordot(wave, direction, axes=1) + rng.uniform(0, 2 * np.pi)
        radius = radius * (1 + 0.012 * np.sin(phase))
    # At least two and a half voxels: a thinner wall would have holes.
    thickness = max(0.035 * rng.uniform(0.9, 1.2), 2.5 / side)
    below = direction[2] < -0.55
    return np.asarray((distance < radius) & (distance > radius - thickness) & ~below)


def take_ball(complete: Mask, defect: str, rng: np.random.Generator) -> Mask:
    """Return what a ball of the defect's kind removes from the skull."""
    side = len(complete)
    defect_center, size = _DEFECTS[defect]
    if defect_center is None:
        toward = rng.normal(size=3)
        toward[2] = abs(toward[2]) + 0.2
    else:
        toward = np.array(defect_center) + 0.15 * rng.normal(size=3)
    toward /= np.linalg.norm(toward)
    voxels = np.argwhere(complete)
    centred = (voxels + 0.5) / side - 0.5
    norms = np.linalg.norm(centred, axis=1)
    # The ball is centered on the wall: on the outermost voxel in this direction.
    seat = centred[np.argmax(centred @ toward / norms)]
    radius = size * rng.uniform(0.85, 1.1)
    removed = ((centred - seat) ** 2).sum(axis=1) < radius**2
    implant = np.zeros_like(complete)
    implant[tuple(voxels[removed].T)] = True
    return implant
