"""overt/geometry/indicator.py: the implant is what the field has and the skull lacks."""

import numpy as np

from overt.geometry.indicator import ScanGrid, implant_of_field


def test_the_implant_is_bone_of_the_field_that_the_skull_lacks() -> None:
    side = 24
    spacing = (2.0, 1.0, 1.0)  # mm; clouds are in voxels of 2 mm
    nodes = np.stack(np.meshgrid(*(np.arange(side) / side,) * 3, indexing="ij"), -1)
    field = np.linalg.norm(nodes - 0.5, axis=-1) - 0.3  # a ball

    def to_indices(cloud: np.ndarray) -> np.ndarray:
        return cloud * np.array([1.0, 2.0, 2.0]) - np.array([1.0, 0.0, 0.0])

    def to_unit(cloud: np.ndarray) -> np.ndarray:
        return cloud / 20.0

    indices = np.stack(np.meshgrid(np.arange(20), np.arange(40), np.arange(40), indexing="ij"), -1)
    cloud = (indices + np.array([1.0, 0.0, 0.0])) / np.array([1.0, 2.0, 2.0])
    ball = np.linalg.norm(cloud / 20.0 - 0.5, axis=-1) <= 0.3
    skull = ball & (cloud[..., 0] < 12)
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(400, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    points = 10 + 6 * directions
    points = points[points[:, 0] >= 12]
    made = implant_of_field(field, points, to_unit, ScanGrid(skull, spacing, to_indices))
    truth = ball & ~skull
    assert not (made & skull).any()
    overlap = 2 * (made & truth).sum() / (made.sum() + truth.sum())
    assert overlap > 0.97
    nowhere = implant_of_field(field, points + 500, to_unit, ScanGrid(skull, spacing, to_indices))
    assert not nowhere.any()
