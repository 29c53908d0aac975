"""Grids of points: order, margin, shift."""

import torch

from overt.geometry.grid import pixel_scale, point_grid


def test_rows_run_along_x_and_a_margin_stays_free() -> None:
    grid = point_grid(3, (64, 128))
    assert grid.tolist()[:4] == [[2.0, 2.0], [64.0, 2.0], [126.0, 2.0], [2.0, 32.0]]
    assert grid[-1].tolist() == [126.0, 62.0]


def test_the_points_of_a_very_wide_picture_stay_inside() -> None:
    x, y = point_grid(4, (16, 2000)).unbind(-1)
    assert (x.min(), x.max()) == (31.25, 1968.75)
    assert (y.min(), y.max()) == (0.25, 15.75)
    # The published margin is kept where it fits, even where it turns the order of the rows.
    assert point_grid(2, (32, 2000))[:, 1].tolist() == [31.25, 31.25, 0.75, 0.75]


def test_a_centre_shifts_the_grid() -> None:
    shift = torch.tensor([7.0, -40.0])
    moved = point_grid(4, (50, 50), centre=(25 - 40.0, 25 + 7.0))
    torch.testing.assert_close(moved, point_grid(4, (50, 50)) + shift)


def test_one_point_is_the_centre_and_none_is_none() -> None:
    assert point_grid(1, (10, 20)).tolist() == [[10.0, 5.0]]
    assert point_grid(1, (10, 20), centre=(3.0, 4.0)).tolist() == [[4.0, 3.0]]
    assert point_grid(0, (10, 20)).shape == (0, 2)


def test_corners_of_one_size_are_those_of_another() -> None:
    last_xy = torch.tensor([127.0, 63.0])
    scaled = last_xy * pixel_scale((64, 128), (33, 9))
    torch.testing.assert_close(scaled, torch.tensor([8.0, 32.0]))
