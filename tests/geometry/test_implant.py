"""overt/geometry/implant.py: what is done to an implant before printing, and its measures."""

import numpy as np
import pytest

from overt.geometry import implant as implants
from overt.geometry.isosurface import mask_surface

SPACING = (0.5, 0.5, 1.0)


def plate() -> np.ndarray:
    """A plate of 20 x 20 x 6 mm."""
    mask = np.zeros((60, 60, 16), dtype=bool)
    mask[10:50, 10:50, 5:11] = True
    return mask


def test_specks_parts_holes_and_clearance_are_treated_and_counted() -> None:
    rough = plate()
    rough[30, 30, 8] = False  # a hole inside
    rough[55, 1, 1] = True  # a speck
    rough[52:55, 55:58, 2:5] = True  # another part
    skull = np.zeros_like(rough)
    skull[:10] = True
    skull[10:12, 10:50, 5:11] = True  # overlaps the plate
    rough &= ~skull
    finished, changed = implants.finish(rough, skull, SPACING, clearance_mm=1.0)
    expected = plate()
    expected[:14] = False  # two voxels of skull, two of clearance
    np.testing.assert_array_equal(finished, expected)
    assert changed["specks"] < 0
    assert changed["parts"] == -27
    assert changed["holes"] > 0
    assert changed["clearance"] < 0
    nothing = np.zeros_like(rough)
    assert not implants.finish(nothing, skull, SPACING).implant.any()


def test_the_thickness_of_a_plate() -> None:
    mask = plate()
    vertices, faces = mask_surface(mask)
    steps = np.array(SPACING)
    thickness = implants.wall_thickness(vertices * steps, faces, mask, lambda p: p / steps)
    top = (vertices[:, 2] > 10) & (np.abs(vertices[:, :2] - 29.5) < 15).all(axis=1)
    np.testing.assert_allclose(thickness[top], 6.0, atol=0.5)


def test_measures_are_in_millimeters() -> None:
    mask, skull = plate(), np.zeros((60, 60, 16), dtype=bool)
    skull[:8] = True
    found = implants.measures(mask, skull, SPACING)
    assert found["volume_cm3"] == pytest.approx(2.4)
    assert found["extent_k_mm"] == 6.0
    assert found["gap_to_skull_mm"] == pytest.approx(1.5)  # centers of voxels 7 and 10
