"""Errors of people: what must not matter does not, and what must, does."""

import numpy as np
import pytest

from overt.metrics import human


def points(count: int = 3, size: int = 20) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, size, 3))


def rotation() -> np.ndarray:
    matrix, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))
    return matrix * np.sign(np.linalg.det(matrix))


def test_a_similar_set_is_aligned_exactly() -> None:
    truth = points()
    moved = 0.3 * truth @ rotation().T + np.array([1.0, 2.0, 3.0])
    assert human.aligned_distances(moved, truth).max() < 1e-12
    assert human.distances(moved, truth).min() > 0.01
    similarity = human.best_similarity(moved, truth)
    np.testing.assert_allclose(similarity.scale, 1 / 0.3)
    np.testing.assert_allclose(similarity.rotation[0], rotation().T, atol=1e-12)


def test_a_mirror_image_cannot_be_aligned() -> None:
    mirrored = points() * np.array([-1.0, 1.0, 1.0])
    assert human.aligned_distances(mirrored, points()).mean() > 0.3
    determinants = np.linalg.det(human.best_similarity(mirrored, points()).rotation)
    np.testing.assert_allclose(determinants, 1)


def test_alignment_never_makes_the_sum_of_squares_worse() -> None:
    noisy = points() + 0.3 * points()[::-1]
    before = np.square(human.distances(noisy, points())).sum(1)
    after = np.square(human.aligned_distances(noisy, points())).sum(1)
    assert (after <= before).all()


def test_joints_are_taken_relative_to_the_pelvis() -> None:
    joints = points(2, 17)
    found = human.pelvis_centred(joints + np.array([5.0, 0.0, 1.0]))
    np.testing.assert_allclose(found, human.pelvis_centred(joints))
    assert found.shape == (2, 14, 3)


def test_the_mean_of_nothing_is_not_a_number() -> None:
    values = np.array([[1.0, 3.0]])
    assert human.masked_mean(values) == 2.0
    assert human.masked_mean(values, np.array([[True, False]])) == 1.0
    assert np.isnan(human.masked_mean(values, np.zeros((1, 2), bool)))


def test_overlaps() -> None:
    true, found = np.zeros((2, 1, 4), int), np.zeros((2, 1, 4), int)
    true[0, 0] = [1, 1, 2, 0]
    found[0, 0] = [1, 2, 2, 2]
    assert human.mask_iou(found, true)[0] == pytest.approx(75.0)
    assert human.part_iou(found, true)[0] == pytest.approx(100 * 2 / 5)
    assert np.isnan(human.mask_iou(found, true)[1])
    assert np.isnan(human.part_iou(found, true)[1])
