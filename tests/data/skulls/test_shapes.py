"""overt/data/skulls/shapes.py: synthetic skulls have a wall, a base, and openings."""

import numpy as np
import pytest

from overt.data.skulls import shapes


@pytest.fixture(scope="module")
def skull() -> np.ndarray:
    return shapes.make_skull(np.random.default_rng(1), 64)


def test_the_vault_is_closed_and_its_wall_is_that_of_a_skull(skull: np.ndarray) -> None:
    middle = np.round((np.array(shapes.MIDDLE_MM) / shapes.HEAD_MM + 0.5) * 64).astype(int)
    up = skull[middle[0], middle[1], middle[2] :]
    back = skull[middle[0], middle[1] :, middle[2]]
    for ray in (up, back):
        assert not ray[0]  # the brain
        wall = int(ray.sum()) * shapes.HEAD_MM / 64
        assert 3 <= wall <= 16
        assert (np.diff(ray.astype(int)) == 1).sum() == 1  # one wall
    volume = skull.sum() * (shapes.HEAD_MM / 64) ** 3 / 1000
    assert 300 < volume < 1100  # cm3; coarse voxels make walls thick


def test_skulls_differ_and_follow_from_their_generator(skull: np.ndarray) -> None:
    again = shapes.make_skull(np.random.default_rng(1), 64)
    np.testing.assert_array_equal(skull, again)
    other = shapes.make_skull(np.random.default_rng(2), 64)
    assert (other ^ skull).sum() > 0.3 * skull.sum()
