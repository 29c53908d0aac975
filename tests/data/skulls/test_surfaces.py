"""overt/data/skulls/surfaces.py: closed surfaces of any mask, and evenly spread points on them."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.data.skulls import surfaces
from overt.errors import DataError


def open_edges(triangles: np.ndarray) -> int:
    """Edges that an odd number of triangles share; points on one line make no triangle."""
    edges: Counter[tuple[tuple[float, ...], ...]] = Counter()
    for triangle in triangles:
        corners = [tuple(corner) for corner in triangle]
        for a, b in ((0, 1), (1, 2), (2, 0)):
            if corners[a] != corners[b]:
                edges[tuple(sorted((corners[a], corners[b])))] += 1
    return sum(count % 2 for count in edges.values())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**27 - 1))
def test_the_surface_of_any_mask_is_closed(bits: int) -> None:
    mask = np.zeros((5, 5, 5), dtype=bool)
    mask[1:4, 1:4, 1:4] = np.array([bits >> k & 1 for k in range(27)], dtype=bool).reshape(3, 3, 3)
    assert open_edges(surfaces.surface_triangles(mask)) == 0


def test_there_are_the_820_triangles_of_marching_cubes() -> None:
    cases = [surfaces._triangles(inside) for inside in range(256)]
    assert sum(map(len, cases)) == 820
    assert max(map(len, cases)) == 5
    assert not cases[0]
    assert not cases[255]


def test_corners_lie_on_the_voxels_just_outside() -> None:
    mask = np.zeros((7, 7, 7), dtype=bool)
    mask[3, 3, 3] = True
    corners = surfaces.surface_triangles(mask).reshape(-1, 3)
    expected = np.concatenate([np.eye(3), -np.eye(3)]) + 3
    assert {tuple(corner) for corner in corners} == {tuple(corner) for corner in expected}


def test_a_full_or_empty_volume_has_no_surface() -> None:
    for mask in (np.zeros((4, 4, 4), dtype=bool), np.ones((4, 4, 4), dtype=bool)):
        assert len(surfaces.surface_triangles(mask)) == 0


def test_points_are_on_the_surface_and_apart() -> None:
    places = np.indices((24, 24, 24)) - 11.5
    triangles = surfaces.surface_triangles((places**2).sum(axis=0) < 81)
    points = surfaces.sample_surface(triangles, 500, np.random.default_rng(0))
    assert points.shape == (500, 3)
    radius = np.linalg.norm(points - 11.5, axis=1)
    assert radius.min() > 8.4
    assert radius.max() < 10.6
    # Nearest neighbours of evenly spread points are about equally far; of thrown ones they are not.
    gaps = np.linalg.norm(points[:, None] - points, axis=2) + np.eye(500) * 99
    nearest = gaps.min(axis=1)
    assert nearest.min() > 0.55 * nearest.mean()
    assert np.abs(points.mean(axis=0) - 11.5).max() < 0.5


def test_the_same_generator_gives_the_same_points() -> None:
    mask = np.zeros((8, 8, 8), dtype=bool)
    mask[2:6, 2:6, 2:6] = True
    triangles = surfaces.surface_triangles(mask)
    one, other = (
        surfaces.sample_surface(triangles, 50, np.random.default_rng(7)) for _ in range(2)
    )
    np.testing.assert_array_equal(one, other)


def test_close_pairs_are_all_pairs() -> None:
    points = np.random.default_rng(0).random((150, 3))
    first, second = surfaces.close_pairs(points, 0.2)
    gaps = np.linalg.norm(points[:, None] - points, axis=2)
    expected = {(a, b) for a, b in np.argwhere(gaps < 0.2) if a < b}
    assert len(first) == len(expected)
    assert set(zip(first.tolist(), second.tolist(), strict=True)) == expected


def test_thinning_keeps_the_first_of_each_crowd() -> None:
    points = np.random.default_rng(1).random((200, 3))
    kept = surfaces.thin_out(points, 0.15)
    by_hand: list[int] = []
    for number, point in enumerate(points):
        if all(np.linalg.norm(point - points[other]) >= 0.15 for other in by_hand):
            by_hand.append(number)
    assert np.flatnonzero(kept).tolist() == by_hand


def test_a_surface_without_area_is_refused() -> None:
    with pytest.raises(DataError, match="without area"):
        surfaces.sample_surface(np.zeros((2, 3, 3)), 5, np.random.default_rng(0))
