"""overt/data/skulls/cranium.py: sizes of a braincase are those of adults, thin at the temples."""

from dataclasses import replace

import numpy as np
import pytest

from overt.data.skulls.cranium import Braincase, Cranium, braincase
from overt.data.skulls.grids import HEAD_MM, Grid, node_grid, voxel_grid

SIDE = 50


@pytest.fixture(scope="module")
def craniums() -> list[Cranium]:
    return [Cranium.sample(np.random.default_rng(seed)) for seed in range(200)]


def radius(cranium: Cranium, x: float, y: float, z: float) -> float:
    direction = np.array([x, y, z], dtype=np.float32) / np.linalg.norm([x, y, z])
    return float(cranium.radius(*(np.full(1, part) for part in direction))[0])


def test_heads_are_as_long_and_wide_as_adult_ones(craniums: list[Cranium]) -> None:
    length = [radius(c, 0, -1, 0) + radius(c, 0, 1, 0) for c in craniums]
    width = [2 * radius(c, 1, 0.15, 0) for c in craniums]
    assert 150 < min(length) < 165
    assert 170 < max(length) < 190
    assert 110 < min(width) < 130
    assert 145 < max(width) < 165
    ratios = np.array(width) / np.array(length)
    assert 0.68 < ratios.min() < ratios.max() < 0.98
    assert np.ptp(ratios) > 0.12


def test_both_sides_of_an_outline_are_alike(craniums: list[Cranium]) -> None:
    for cranium in craniums[:10]:
        left, right = (radius(cranium, x, -0.4, 0.3) for x in (0.7, -0.7))
        assert left == pytest.approx(right)


def test_the_front_is_where_the_outer_surface_is(craniums: list[Cranium]) -> None:
    for cranium in craniums[:20]:
        y = cranium.front(30.0, -5.0)
        distance = float(np.linalg.norm([30.0, y, -5.0]))
        assert distance == pytest.approx(radius(cranium, 30.0, y, -5.0), abs=0.6)
        assert cranium.front(45.0, -5.0) > cranium.front(0.0, -5.0)  # a forehead is convex


def test_the_fossae_are_three_steps(craniums: list[Cranium]) -> None:
    for cranium in craniums:
        aside = np.array([30.0, 35.0, 30.0], dtype=np.float32)
        y = np.array([-60.0, -20.0, 45.0], dtype=np.float32)
        anterior, middle, posterior = cranium.floor(aside, y)
        assert anterior > middle + 15
        assert middle > posterior


def fields(cranium: Cranium, seed: int = 0) -> tuple[Grid, Braincase]:
    nodes = node_grid(np.eye(3))
    at = voxel_grid(nodes, SIDE)
    return at, braincase(cranium, nodes, at, np.random.default_rng(seed), 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_walls_differ_by_region(seed: int) -> None:
    # Thick, so that the regions show in voxels as coarse as those of this test.
    cranium = replace(Cranium.sample(np.random.default_rng(seed)), wall=15.0, sinus=None)
    at, case = fields(cranium, seed)
    surface = np.abs(case.depth) < 4
    temple = surface & (at.aside > 58) & (np.abs(at.y) < 20) & (np.abs(at.z + 12) < 15)
    forehead = surface & (at.aside < 30) & (at.y < -60) & (at.z > 10) & (at.z < 35)
    occiput = surface & (at.aside < 15) & (at.y > 50) & (at.z < -20)
    assert np.median(case.wall[temple]) < 0.8 * np.median(case.wall[forehead])
    assert np.median(case.wall[temple]) < 0.8 * np.median(case.wall[occiput])


def test_depth_is_a_distance_near_the_surface() -> None:
    at, case = fields(Cranium.sample(np.random.default_rng(4)))
    slopes = np.stack(np.gradient(case.depth, HEAD_MM / SIDE))
    near = (np.abs(case.depth) < 4) & (at.z > 0)
    assert abs(np.median(np.linalg.norm(slopes, axis=0)[near]) - 1) < 0.1


def test_the_sinus_thickens_the_wall_of_the_forehead_only() -> None:
    cranium = replace(
        Cranium.sample(np.random.default_rng(1)), wall=14.0, sinus=(9.0, 20.0, -2.0, 15.0)
    )
    at, with_sinus = fields(cranium)
    _, without = fields(replace(cranium, sinus=None))
    added = with_sinus.wall - without.wall
    front = (at.aside < 8) & (at.y < -60) & (np.abs(at.z) < 5)
    assert added[front].min() > 7
    assert np.abs(added[(at.y > 0) | (at.z > 45)]).max() < 0.2
