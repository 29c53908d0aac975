"""overt/geometry/voxels.py: distances, surfaces, and solids from points on their surface."""

import numpy as np
import pytest

from overt.data.skulls.surfaces import sample_surface, surface_triangles
from overt.geometry import voxels
from overt.metrics.implants import dice


def ball(side: int, radius: float) -> np.ndarray:
    places = np.indices((side, side, side)) - (side - 1) / 2
    return (places**2).sum(axis=0) < radius**2


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


@pytest.mark.parametrize("shell", [True, False])
def test_a_solid_comes_back_from_points_on_its_surface(shell: bool) -> None:
    mask = ball(32, 12) & ~ball(32, 8) if shell else ball(32, 6)
    points = sample_surface(surface_triangles(mask), 2500, np.random.default_rng(0))
    # Up to half the thickness: what is further from both walls would stay empty.
    found = voxels.solid_of_points(points, mask.shape, 3.0 if shell else 7.0)
    assert dice(found, mask) > 0.85


def test_a_solid_at_the_face_of_the_volume_is_not_eaten_from_there() -> None:
    mask = np.zeros((16, 16, 16), dtype=bool)
    mask[0:6, 3:12, 3:12] = True
    points = np.argwhere(voxels.surface(mask)).astype(float)
    found = voxels.solid_of_points(points, mask.shape, 3.0)
    assert found[1:5, 5:10, 5:10].all()


def test_the_majority_decides_and_the_skull_stays_free() -> None:
    mask = ball(20, 6)
    points = sample_surface(surface_triangles(mask), 800, np.random.default_rng(0))
    far = points + 100  # nothing of it is in the volume
    skull = np.zeros_like(mask)
    skull[10] = True
    alone = voxels.solid_of_votes(points[None], skull, 3.0)
    assert alone.any()
    assert not (alone & skull).any()
    two_of_three = voxels.solid_of_votes(np.stack([points, far, points]), skull, 3.0)
    np.testing.assert_array_equal(two_of_three, alone)
    assert not voxels.solid_of_votes(np.stack([points, far, far]), skull, 3.0).any()
