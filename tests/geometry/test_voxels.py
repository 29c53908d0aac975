"""overt/geometry/voxels.py: distances, surfaces and boxes."""

import numpy as np
import pytest

from overt.geometry import voxels


def test_distances_are_the_least_over_all_voxels_of_the_mask() -> None:
    rng = np.random.default_rng(0)
    mask = rng.random((6, 5, 7)) > 0.93
    spacing = (0.5, 2.0, 1.25)
    places = np.argwhere(np.ones_like(mask)) * spacing
    inside = np.argwhere(mask) * spacing
    expected = np.linalg.norm(places[:, None] - inside, axis=2).min(axis=1).reshape(mask.shape)
    np.testing.assert_allclose(voxels.distance_to_plain(mask, spacing), expected)
    np.testing.assert_allclose(voxels.distance_to(mask, spacing), expected)


def test_an_empty_mask_is_infinitely_far() -> None:
    assert np.isinf(voxels.distance_to(np.zeros((3, 3, 3), dtype=bool), (1, 1, 1))).all()


def test_the_surface_has_a_neighbour_outside() -> None:
    mask = np.zeros((6, 6, 6), dtype=bool)
    mask[1:5, 1:5, 1:5] = True
    found = voxels.surface(mask)
    assert found.sum() == 4**3 - 2**3
    mask[:] = True  # at the face of the volume everything is surface
    assert voxels.surface(mask).sum() == 6**3 - 4**3


def test_a_box_with_a_margin_stays_within_the_volume() -> None:
    mask = np.zeros((9, 9, 9), dtype=bool)
    mask[1, 4, 8] = True
    assert voxels.bounding_box(mask, (2, 1, 3)) == (slice(0, 4), slice(3, 6), slice(5, 9))


def test_the_largest_part_is_kept_and_corners_connect_nothing() -> None:
    pytest.importorskip("scipy")
    mask = np.zeros((6, 6, 6), dtype=bool)
    mask[:2, :2, :2] = True
    mask[2, 2, 2:5] = True
    kept = voxels.largest_part(mask)
    assert kept.sum() == 8
    assert kept[:2, :2, :2].all()
    assert not voxels.largest_part(np.zeros_like(mask)).any()
