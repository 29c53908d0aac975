"""overt/recipes/pcdiff/voxel_data.py: points and field of a sample are in one frame."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_recipes import SMALL_VOXELS

from overt.data.rng import sample_rng
from overt.data.skulls.lists import HALF_EXTENT, Cloud, Points, rotation_matrix
from overt.recipes.pcdiff.voxel_data import CUBE, bone_at_nodes


@pytest.mark.parametrize("augment", [False, True])
def test_points_lie_on_the_bone_also_when_turned(tmp_path: Path, augment: bool) -> None:
    words = (f"data.augment={augment}".lower(), "data.rotation_degrees=30", "model.side=32")
    dataset = SMALL_VOXELS.recipe(tmp_path, *words).build_dataset()
    sample, again = (dataset.sample(2, sample_rng(0, 0, 5)) for _ in range(2))
    torch.testing.assert_close(sample.points, again.points)
    assert torch.equal(sample.bone, again.bone)
    assert sample.points.min() > 0
    assert sample.points.max() < 1
    bone = sample.bone.numpy()
    near = np.zeros(len(sample.points), dtype=bool)
    nodes = np.round(sample.points.numpy() * 32).astype(int)
    steps = np.stack(np.meshgrid(*([-1, 0, 1],) * 3, indexing="ij"), -1).reshape(-1, 3)
    for step in steps:
        near |= bone[tuple(np.clip(nodes + step, 0, 31).T)]
    assert near.mean() > 0.97
    assert 0.01 < bone.mean() < 0.3


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    aligned=st.booleans(),
    rotated=st.booleans(),
    fortran=st.booleans(),
)
def test_nodes_match_the_direct_evaluation_of_any_affine_map(
    seed: int, aligned: bool, rotated: bool, fortran: bool
) -> None:
    rng = np.random.default_rng(seed)
    side, shape = int(rng.integers(3, 14)), rng.integers(2, 12, 3)
    bone = rng.random(shape) < 0.5
    bone = np.asfortranarray(bone) if fortran else bone
    mean = rng.normal(shape / 2)
    scale, shift = rng.uniform(0.3, 3, (1, 1)), rng.normal(shape / 2)[None]
    cloud = Cloud(np.zeros((1, 3), dtype=np.float32), shift, scale)
    turn = rotation_matrix(rng.uniform(-3, 3, 3))
    mapped = np.diag(rng.uniform(0.4, 2, 3))
    if not aligned:
        mapped = rotation_matrix(rng.uniform(-3, 3, 3)) @ mapped
    start = rng.normal(size=3)

    def to_indices(points: Points) -> Points:
        return np.asarray(points @ mapped.T + start)

    def turned_back(points: Points) -> Points:
        return np.asarray((points - mean) @ turn + mean)

    result = bone_at_nodes(bone, to_indices, cloud, side, turned_back if rotated else None)
    nodes = (np.arange(side) / side - 0.5) * 2 * HALF_EXTENT * CUBE
    points = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), -1) * scale + shift
    exact = to_indices(turned_back(points) if rotated else points)
    indices = np.round(exact).astype(int)
    inside = ((indices >= 0) & (indices < shape)).all(axis=-1)
    expected = bone[tuple(np.moveaxis(np.clip(indices, 0, shape - 1), -1, 0))] & inside
    tie = (np.abs(np.abs(exact - indices) - 0.5) < 1e-6).any(axis=-1)
    np.testing.assert_array_equal(result[~tie], expected[~tie])
