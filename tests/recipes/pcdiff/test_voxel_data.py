"""overt/recipes/pcdiff/voxel_data.py: points and field of a sample are in one frame."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_VOXELS

from overt.data.rng import sample_rng


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
