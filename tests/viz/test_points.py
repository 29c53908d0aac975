"""overt/viz/points.py: a skull and its implant, from several sides."""

import torch

from overt.viz.points import Shown, draw_clouds


def test_a_picture_has_a_row_for_each_cloud_and_a_column_for_each_side() -> None:
    known = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    rows = [Shown("one", known, known[:5] + 1), Shown("two", known, known[:5])]
    picture = draw_clouds(rows, size=60)
    assert picture.shape == (3, 18 + 2 * 60, 4 * 60)
    assert picture.dtype == torch.uint8


def test_the_implant_is_drawn_in_color_where_it_is() -> None:
    """A single implant point in front, to the right and above: seen from the front, there."""
    known = torch.zeros(1, 3)
    picture = draw_clouds([Shown("", known, torch.tensor([[2.0, -2.0, 2.0]]))], size=100).int()
    front = picture[:, 18:, :100]
    reddish = front[0] - front[2] > 60
    y, x = (axis.float().mean() for axis in reddish.nonzero(as_tuple=True))
    assert x > 70
    assert y < 30


def test_numbers_that_are_not_finite_do_not_stop_a_picture() -> None:
    points = torch.tensor([[torch.nan, torch.inf, 1e30]])
    assert draw_clouds([Shown("", points, points)], size=40).shape == (3, 58, 160)
