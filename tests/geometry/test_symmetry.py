"""overt/geometry/symmetry.py: the other side fills a defect, and only where it can."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import affine_transform

from overt.data.skulls.defects import cut_defect
from overt.data.skulls.shapes import HEAD_MM, make_skull
from overt.errors import DataError
from overt.geometry import symmetry
from overt.metrics.implants import dice

SIDE = 64
AFFINE = np.diag([HEAD_MM / SIDE] * 3 + [1.0])


def test_a_defect_at_the_side_is_filled_and_one_across_the_middle_is_not() -> None:
    skull = make_skull(np.random.default_rng(5), SIDE)
    skull = skull | skull[::-1]  # symmetric
    at_side = cut_defect(skull, AFFINE, "parietotemporal", np.random.default_rng(0))
    filled = symmetry.mirrored_implant(skull & ~at_side, AFFINE)
    assert filled.mismatch_mm < 1.0
    assert dice(filled.implant, at_side) > 0.8
    assert not (filled.implant & skull & ~at_side).any()
    middle = cut_defect(skull, AFFINE, "bilateral", np.random.default_rng(0))
    assert dice(symmetry.mirrored_implant(skull & ~middle, AFFINE).implant, middle) < 0.4


def test_a_speck_has_no_plane_of_symmetry() -> None:
    with pytest.raises(DataError, match="fewer than 100"):
        symmetry.find_mirror(np.ones((2, 2, 2), dtype=bool), np.eye(4))


def test_a_mirror_image_is_that_of_the_whole_volume() -> None:
    """Only boxes of it are read and written; a part of the image leaves the volume."""
    skull = np.zeros((40, 44, 36), dtype=bool)
    skull[0:9, 8:30, 4:36] = True
    skull[3:6, 12:20, 10:20] = False
    angle = np.radians(20)
    affine = np.eye(4)
    affine[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    affine[:3] *= 0.7
    affine[:3, 3] = [-20, 5, 3]
    mirror = np.diag([-1.0, 1.0, 1.0, 1.0])
    mirror[0, 3] = -28.3
    step = np.linalg.inv(affine) @ np.linalg.inv(mirror) @ affine
    whole = affine_transform(skull.astype(np.float32), step[:3, :3], step[:3, 3], order=1) > 0.5
    assert 0 < whole.sum() < skull.sum()
    np.testing.assert_array_equal(symmetry._mirrored(skull, affine, mirror), whole)
    mirror[0, 3] = 900.0
    assert not symmetry._mirrored(skull, affine, mirror).any()


def bulging_skull() -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return a skull whose left temple bulges by 11 mm, and a gap at its right forehead."""
    grid = (np.indices((66, 66, 50)).transpose(1, 2, 3, 0) - [30, 32, 16]) * 3.0  # mm
    radius = np.linalg.norm(grid, axis=-1)
    angle = np.arccos(np.clip(grid[..., 0] / np.maximum(radius, 1e-6), -1, 1))  # from the left
    outer = 80 + 11 * np.exp(-((angle / 0.5) ** 2))
    whole = (radius < outer) & (radius > outer - 7) & (grid[..., 2] > -40)
    gap = np.linalg.norm(grid - [-45, -52, 40], axis=-1) < 20
    return whole, whole & gap


def test_a_head_that_bulges_on_one_side_has_no_gap_there() -> None:
    whole, gap = bulging_skull()
    affine = np.diag([3.0, 3.0, 3.0, 1.0])
    assert dice(symmetry.mirrored_implant(whole & ~gap, affine).implant, gap) > 0.7
    assert not symmetry.mirrored_implant(whole, affine).implant.any()
