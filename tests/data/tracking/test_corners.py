"""Corners of an image."""

import numpy as np

from overt.data.tracking.corners import find_corners


def test_the_corners_of_a_square_and_nothing_on_its_edges():
    frame = np.zeros((3, 40, 50), np.uint8)
    frame[:, 10:25, 15:35] = 200
    corners_xy = find_corners(frame, 4)
    expected = {(15, 10), (34, 10), (15, 24), (34, 24)}
    for x, y in corners_xy:
        assert min(abs(x - a) + abs(y - b) for a, b in expected) <= 2
    assert len({(x > 25, y > 17) for x, y in corners_xy}) == 4


def test_no_corners_where_there_are_none():
    assert find_corners(np.full((3, 20, 20), 7, np.uint8), 5).shape == (0, 2)
    assert find_corners(np.zeros((3, 4, 4), np.uint8), 5).shape == (0, 2)
    noise = np.random.default_rng(0).integers(0, 255, (3, 30, 30), dtype=np.uint8)
    assert find_corners(noise, 5).shape == (5, 2)
