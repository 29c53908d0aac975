"""overt/metrics/implants.py: overlap and distances, by hand and at their edges."""

import math

import numpy as np
import pytest

from overt.geometry.voxels import distance_to
from overt.metrics.implants import border_dice, dice, implant_scores, surface_distances

SPACING = (1.0, 1.0, 1.0)


def block(*parts: slice) -> np.ndarray:
    mask = np.zeros((20, 10, 10), dtype=bool)
    mask[parts] = True
    return mask


def test_dice_of_halves_and_of_nothing() -> None:
    whole, half = block(slice(0, 4)), block(slice(0, 2))
    assert dice(whole, half) == pytest.approx(2 / 3)
    assert dice(whole, whole) == 1.0
    nothing = np.zeros_like(whole)
    assert dice(nothing, nothing) == 0.0
    assert dice(whole, nothing) == 0.0


def test_border_dice_looks_near_the_skull_only() -> None:
    skull = block(slice(0, 1))
    truth, predicted = block(slice(1, 18)), block(slice(1, 12))
    assert dice(predicted, truth) < 0.8
    # Up to and with 10 mm both are the same; at 11 mm they still are, then they differ.
    assert border_dice(predicted, truth, skull, SPACING, 10.0) == 1.0
    assert border_dice(predicted, truth, skull, SPACING, 14.0) < 1.0
    at_ten = block(slice(1, 11))
    assert border_dice(at_ten, truth, skull, SPACING, 10.0) == 1.0
    assert border_dice(block(slice(1, 10)), truth, skull, SPACING, 10.0) < 1.0


@pytest.mark.parametrize("spacing", [(0.5, 1.0, 2.5), (2.5, 0.5, 1.0)])
def test_the_border_is_measured_in_millimeters(spacing: tuple[float, float, float]) -> None:
    """As in the whole volume: distances are only looked up in a box around the implant."""
    rng = np.random.default_rng(0)
    shape = (24, 24, 24)
    center = np.indices(shape).transpose(1, 2, 3, 0) - np.array([12, 12, 12])
    skull = np.zeros(shape, dtype=bool)
    skull[12, 12, 1] = skull[12, 1, 12] = skull[1, 12, 12] = True
    ball = (center**2).sum(-1) < 36
    predicted, truth = ball & (rng.random(shape) < 0.7), ball & (rng.random(shape) < 0.7)
    for border in (4.0, 7.0, 10.0):
        near = distance_to(skull, spacing) <= border
        expected = dice(predicted & near, truth & near)
        assert border_dice(predicted, truth, skull, spacing, border) == expected
    assert expected > 0
    scores = implant_scores(predicted, truth, skull, spacing)
    assert scores["bdsc"] == expected  # 10 mm, as published


def test_border_dice_without_a_skull_nearby_is_zero() -> None:
    nothing = np.zeros((20, 10, 10), dtype=bool)
    assert border_dice(block(slice(3, 5)), block(slice(3, 5)), nothing, SPACING) == 0.0
    assert border_dice(nothing, nothing, block(slice(0, 1)), SPACING) == 0.0


def test_distances_of_shifted_planes() -> None:
    one, other = block(slice(3, 4)), block(slice(8, 9))
    distances = surface_distances(one, other, (2.0, 1.0, 1.0))
    np.testing.assert_allclose(distances, 10.0)
    scores = implant_scores(one, other, block(slice(0, 1)), (2.0, 1.0, 1.0))
    assert scores["hd95"] == scores["assd"] == scores["hd"] == pytest.approx(10.0)


def test_empty_masks_have_no_distance() -> None:
    nothing, something = np.zeros((20, 10, 10), dtype=bool), block(slice(3, 4))
    with pytest.raises(ValueError, match="not empty"):
        surface_distances(nothing, something, SPACING)
    scores = implant_scores(nothing, something, something, SPACING)
    assert scores["dsc"] == 0.0
    assert all(math.isnan(scores[name]) for name in ("hd95", "assd", "hd"))
