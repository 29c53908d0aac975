"""Labels that no person has: most are in other units, such as millimeters or degrees."""

from __future__ import annotations

import math

import numpy as np

from overt.data.people.human_data import HumanData

# Largest distance along an axis, turn of a joint and shape coefficient. Fits leave joints that are
# turned more than once; poses in degrees are far beyond.
FARTHEST_M, MOST_RADIANS, LARGEST_SHAPE = 100.0, 8 * math.pi, 100.0


def implausible_rows(data: HumanData, name: str) -> dict[int, str]:
    """Return what is wrong with rows of a label; NaN is not."""
    values = np.asarray(data.columns[name], np.float64).reshape(len(data), -1)
    limit, expected = _limit_of(name)
    if limit == MOST_RADIANS:
        values = np.linalg.norm(values.reshape(len(data), -1, 3), axis=-1)
    largest = np.abs(values).max(1, initial=0.0)
    rows = np.nonzero(largest > limit)[0].tolist()
    return {row: f"has a {name} of {largest[row]:.4g}; {expected}" for row in rows}


def _limit_of(name: str) -> tuple[float, str]:
    label = name.rpartition("/")[2]
    if label in ("transl", "pelvis"):
        return FARTHEST_M, f"expected meters, up to {FARTHEST_M:g}"
    if label == "betas":
        return LARGEST_SHAPE, f"expected shape coefficients up to {LARGEST_SHAPE:g}"
    return MOST_RADIANS, f"expected axis-angle vectors in radians, up to {MOST_RADIANS:.3g}"
