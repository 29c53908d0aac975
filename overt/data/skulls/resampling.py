"""Resample masks to another grid in patient space. Never imports torch."""

from __future__ import annotations

import numpy as np

from overt.data.skulls.volumes import Matrix, Volume, axes_matrix
from overt.errors import DataError
from overt.geometry.voxels import Mask


def resample_mask(mask: Mask, affine: Matrix, target: Volume) -> Mask:
    """Return a mask in the grid of `target`: linear interpolation, then a threshold of one half."""
    try:
        from scipy.ndimage import affine_transform
    except ImportError as error:
        raise DataError(
            "masks are resampled with SciPy, which is not installed; pip install 'overt[skulls]'"
        ) from error

    step = np.linalg.inv(affine) @ target.affine
    values = affine_transform(
        mask.astype(np.float32), step[:3, :3], step[:3, 3], target.values.shape, order=1
    )
    return np.asarray(values > 0.5)


def isotropic_grid(volume: Volume, spacing: float, axes: str = "LPS", margin: int = 2) -> Volume:
    """Return an empty mask with cubic voxels along `axes` that contains a whole volume."""
    corners = np.array(np.meshgrid(*[(0, size - 1) for size in volume.values.shape])).reshape(3, -1)
    patient = volume.to_patient(corners.T)
    directions = axes_matrix(axes)
    along = patient @ directions  # coordinates along the new axes
    low, high = along.min(axis=0) - margin * spacing, along.max(axis=0) + margin * spacing
    affine = np.eye(4)
    affine[:3, :3] = directions * spacing
    affine[:3, 3] = directions @ low
    shape = tuple(int(size) for size in np.ceil((high - low) / spacing) + 1)
    return Volume(np.zeros(shape, dtype=bool), affine)
