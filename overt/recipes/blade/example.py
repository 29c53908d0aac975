"""Samples of noise in the shapes of training, for `overt plan` and benchmarks; no file is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from overt.data.people.human_data import SMPLX_SHAPES
from overt.data.rng import sample_rng
from overt.geometry.crop import Picture
from overt.recipe import SampleSource
from overt.recipes.blade.config import DataSettings
from overt.recipes.blade.people import Array, LabeledPeople, SmplxLabel

NEAREST_M, FARTHEST_M = 0.5, 8.0
BEND = 0.3  # deviation of a joint's rotation, in radians


class ExamplePeople:
    """People in pictures of noise, all different, each the same every time."""

    def __init__(self, count: int, side: int) -> None:
        self.side = side
        self.depths = np.linspace(NEAREST_M, FARTHEST_M, count, dtype=np.float32)  # (count,) meters

    def __len__(self) -> int:
        return len(self.depths)

    def picture(self, row: int) -> Picture:
        shape = (self.side, self.side, 3)
        return np.random.default_rng([row, 0]).integers(0, 256, shape, dtype=np.uint8)

    def square(self, row: int, image_size: tuple[int, int]) -> tuple[tuple[float, float], float]:
        height, width = image_size
        return (width / 2, height / 2), float(max(height, width))

    def limb_keypoints(self, row: int) -> Array:
        """Twelve joints in the middle of the picture, one of them not seen."""
        middle_half = np.random.default_rng([row, 1]).uniform(0.25, 0.75, (12, 2)) * self.side
        visible = np.arange(12) != row % 12
        return np.concatenate([middle_half, visible[:, None]], axis=1).astype(np.float32)

    def principal_point(self, row: int, image_size: tuple[int, int]) -> tuple[float, float]:
        height, width = image_size
        return width / 2, height / 2

    def label(self, row: int) -> SmplxLabel:
        rng = np.random.default_rng([row, 2])

        def values(name: str) -> Array:
            return rng.standard_normal(SMPLX_SHAPES[name], dtype=np.float32)

        poses = ("global_orient", "body_pose", "left_hand_pose", "right_hand_pose")
        root, body, left_hand, right_hand = (BEND * values(name) for name in poses)
        return SmplxLabel(root, body, left_hand, right_hand, values("betas"), self.pelvis(row))

    def pelvis(self, row: int) -> Array:
        return np.array([0.0, 0.0, self.depths[row]], np.float32)

    def depth_map(self, row: int) -> Array:
        """The pelvis's depth all over, but for the first row of pixels, where it is not known."""
        depth = np.full((self.side, self.side), self.depths[row], np.float32)
        depth[0] = 0
        return depth


def example_samples(
    source: Callable[[LabeledPeople, DataSettings], SampleSource],
    settings: DataSettings,
    size: int,
) -> list[Any]:
    """Samples of one batch, cut from pictures of noise by a recipe's own `source`."""
    people = ExamplePeople(size, max(settings.depth_size, settings.pose_size))
    samples = source(people, settings)
    return [samples.sample(index, sample_rng(0, 0, index)) for index in range(size)]
