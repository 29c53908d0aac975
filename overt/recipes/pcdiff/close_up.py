"""Close-ups: the bone around an implant instead of the whole skull, so that its points are denser.

Letters: K implant points, n samples. Coordinates are those of the clouds on disk. Never imports
torch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overt.data.skulls.lists import Points
from overt.recipes.pcdiff.config import CloseUpSettings

FEWEST_POINTS = 64  # a close-up of fewer shows no bone to complete
OUTLIERS = 0.01  # of sampled points, at each end of each axis


class Cube(NamedTuple):
    center: Points  # (3,)
    side: float

    def inside(self, points: Points) -> Points:
        """Return the points (N, 3) that are in the cube."""
        offset = np.abs(points - self.center.astype(points.dtype))
        return points[(offset <= self.side / 2).all(axis=1)]


def random_cube(implant: Points, settings: CloseUpSettings, rng: np.random.Generator) -> Cube:
    """Return a cube around the true points (K, 3), as inexact as one around sampled points."""
    low, high = implant.min(axis=0), implant.max(axis=0)
    extent = float((high - low).max())
    shift = rng.uniform(-settings.shift, settings.shift, 3) * extent
    jitter = rng.uniform(1 - settings.side_jitter, 1 + settings.side_jitter)
    return Cube((low + high) / 2 + shift, extent * settings.side * jitter)


def sampled_cube(implants: Points, settings: CloseUpSettings) -> Cube:
    """Return the cube around sampled implants (n, K, 3), without stray points and samples."""
    low, high = box_of(implants)
    return Cube((low + high) / 2, float((high - low).max()) * settings.side)


def box_of(implants: Points) -> tuple[Points, Points]:
    """Return the lowest and highest corner of implants (n, K, 3), (3,) each, without stray points.

    They are medians over the samples: a sample that went astray has no influence.
    """
    low, high = np.quantile(implants, (OUTLIERS, 1 - OUTLIERS), axis=1)  # (n, 3) each
    return np.median(low, axis=0), np.median(high, axis=0)
