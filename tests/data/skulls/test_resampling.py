"""overt/data/skulls/resampling.py: a mask stays where it is in the patient."""

import numpy as np

from overt.data.skulls.resampling import isotropic_grid, resample_mask
from overt.data.skulls.volumes import Volume


def test_a_flat_oblique_ball_is_a_ball_in_cubic_voxels() -> None:
    affine = np.array([[0, 0.8, 0, 5], [-0.8, 0, 0, 9], [0, 0, 2.0, -7], [0, 0, 0, 1.0]])
    volume = Volume(np.zeros((40, 40, 16), dtype=bool), affine)
    indices = np.argwhere(~volume.values)
    center = volume.to_patient(np.array([19.5, 19.5, 7.5]))
    near = np.linalg.norm(volume.to_patient(indices) - center, axis=1) < 11
    volume.values[tuple(indices[near].T)] = True
    grid = isotropic_grid(volume, 1.0, "RAS")
    np.testing.assert_array_equal(grid.affine[:3, :3], np.diag([-1.0, -1.0, 1.0]))
    moved = grid.with_values(resample_mask(volume.values, affine, grid))
    found = moved.to_patient(np.argwhere(moved.values))
    np.testing.assert_allclose(found.mean(axis=0), center, atol=0.3)
    np.testing.assert_allclose(np.ptp(found, axis=0), 21, atol=3.1)
