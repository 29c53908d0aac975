"""overt/recipes/pcdiff/close_up.py: cubes that hold the implant, whatever strays."""

import numpy as np
import pytest

from overt.recipes.pcdiff.close_up import Cube, random_cube, sampled_cube
from overt.recipes.pcdiff.config import CloseUpSettings

SETTINGS = CloseUpSettings(fraction=1.0, side=1.6, side_jitter=0.15, shift=0.08)


def box(seed: int, points: int = 500) -> np.ndarray:
    """Points of an implant of random position and extent, reaching its own corners."""
    rng = np.random.default_rng(seed)
    low, extent = rng.uniform(-50, 50, 3), rng.uniform(10, 60, 3)
    return low + extent * np.concatenate([rng.random((points, 3)), [[0, 0, 0], [1, 1, 1]]])


def test_a_cube_holds_the_points_inside_it() -> None:
    cube = Cube(np.array([1.0, 2.0, 3.0]), 2.0)
    points = np.array([[1, 2, 3], [2, 3, 4], [2.1, 2, 3], [1, 2, 1.9]], dtype=np.float32)
    assert cube.inside(points).tolist() == [[1, 2, 3], [2, 3, 4]]
    assert cube.inside(points).dtype == np.float32


@pytest.mark.parametrize("seed", range(20))
def test_a_random_cube_holds_the_whole_implant(seed: int) -> None:
    implant = box(seed)
    rng = np.random.default_rng(seed)
    cubes = [random_cube(implant, SETTINGS, rng) for _ in range(20)]
    assert all(len(cube.inside(implant)) == len(implant) for cube in cubes)
    assert len({cube.side for cube in cubes}) == 20


def test_stray_points_and_samples_do_not_move_the_cube() -> None:
    implants = np.stack([box(3)] * 5)
    straight = sampled_cube(implants, SETTINGS)
    assert len(straight.inside(implants[0])) == len(implants[0])
    stray = implants.copy()
    stray[0] += 400  # a sample that found another place
    stray[1:, :2] -= 300  # points that left the head
    moved = sampled_cube(stray, SETTINGS)
    extent = np.ptp(implants[0], axis=0).max()
    assert np.abs(moved.center - straight.center).max() < 0.02 * extent
    assert abs(moved.side - straight.side) < 0.05 * extent
