"""overt/data/skulls/grids.py: coordinates, noise and solids are the same whatever the voxels."""

import numpy as np
import pytest

from overt.data.skulls import grids
from overt.data.skulls.grids import HEAD_MM, MIDDLE_MM


@pytest.fixture(scope="module")
def nodes() -> grids.Grid:
    return grids.node_grid(grids.rotation((0.0, 0.0, 0.0)))


@pytest.mark.parametrize("side", [16, 40])
def test_coordinates_are_those_of_the_volume_around_the_vault(nodes: grids.Grid, side: int) -> None:
    at = grids.voxel_grid(nodes, side)
    axis = (np.arange(side) + 0.5) * HEAD_MM / side - HEAD_MM / 2
    for index, (field, middle) in enumerate(zip((at.x, at.y, at.z), MIDDLE_MM, strict=True)):
        expected = np.moveaxis(np.broadcast_to(axis - middle, (side,) * 3), 2, index)
        np.testing.assert_allclose(field, expected, atol=1e-3)


def test_a_nodding_head_rotates_around_the_ears() -> None:
    at = grids.node_grid(grids.rotation((10.0, 0.0, 0.0)))
    straight = grids.node_grid(np.eye(3))
    np.testing.assert_allclose(at.x, straight.x, atol=1e-4)
    lengths = [np.hypot(grid.y, grid.z) for grid in (at, straight)]
    np.testing.assert_allclose(*lengths, atol=1e-3)
    angle = np.arctan2(at.z, at.y) - np.arctan2(straight.z, straight.y)
    far = lengths[1] > 10
    np.testing.assert_allclose(np.cos(angle[far]), np.cos(np.deg2rad(10)), atol=1e-3)


def test_noise_does_not_depend_on_the_voxels(nodes: grids.Grid) -> None:
    coarse, fine = (grids.voxel_grid(nodes, side) for side in (20, 60))
    first, second = (at.noise(np.random.default_rng(0), 12.0) for at in (coarse, fine))
    # The middle of three fine voxels is the coarse one.
    np.testing.assert_allclose(first, second[1::3, 1::3, 1::3], atol=1e-3)
    assert 0.8 < second.std() < 1.2
    assert abs(second.mean()) < 0.3


def test_a_box_crops_every_field(nodes: grids.Grid) -> None:
    at = grids.voxel_grid(nodes, 40)
    box = at.box((-30.0, -200.0, 0.0), (30.0, -20.0, 200.0))
    part = at.crop(box)
    assert abs(part.x.min() + 30) <= 5
    assert abs(part.x.max() - 30) <= 5
    assert part.y.max() <= -20
    assert part.z.min() >= 0
    np.testing.assert_array_equal(part.y, at.y[box])
    noises = [grid.noise(np.random.default_rng(1), 20.0) for grid in (at, part)]
    np.testing.assert_allclose(noises[0][box], noises[1], atol=1e-4)


def test_tubes_and_ellipsoids_are_on_both_sides(nodes: grids.Grid) -> None:
    at = grids.voxel_grid(nodes, 40)  # its middle is one of the mirror's as well
    away = grids.tube(at, [(30.0, 0.0, 0.0), (30.0, 40.0, 0.0), (30.0, 40.0, 40.0)])
    np.testing.assert_allclose(away, away[::-1], atol=1e-3)
    expected = np.hypot(at.aside - 30, at.z)[:, (at.y[0, :, 0] > 0) & (at.y[0, :, 0] < 40)]
    between = away[:, (at.y[0, :, 0] > 0) & (at.y[0, :, 0] < 40)]
    below = at.z[0, 0] < 0  # nearer to the first line than to the second
    np.testing.assert_allclose(between[..., below], expected[..., below], atol=1e-3)
    ball = grids.ellipsoid(at, (30.0, 0.0, 0.0), (20.0, 20.0, 20.0))
    exact = np.sqrt((at.aside - 30) ** 2 + at.y**2 + at.z**2) - 20
    np.testing.assert_allclose(ball, exact, atol=1e-2)
    assert (
        (grids.ellipsoid(at, (30.0, 0.0, 0.0), (20.0, 20.0, 20.0), 4.0) < 0) >= (ball < 0)
    ).all()
