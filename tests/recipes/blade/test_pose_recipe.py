"""overt/recipes/blade/pose_recipe.py: labels become rotations, and a step has one size."""

import torch

from overt.geometry.rotation import axis_angle_to_matrix
from overt.recipes.blade.pose_recipe import resize_for_step, true_rotations


def images(count: int = 3) -> torch.Tensor:
    return torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)


def test_labels_become_rotations_of_all_joints() -> None:
    pose = 0.3 * torch.randn(2, 52, 3)
    rotations = true_rotations(pose)
    assert rotations.shape == (2, 55, 3, 3)
    torch.testing.assert_close(rotations[:, 22:25], torch.eye(3).repeat(2, 3, 1, 1))
    torch.testing.assert_close(rotations[:, 25:], axis_angle_to_matrix(pose[:, 22:]))


def test_a_step_has_one_size_of_its_own() -> None:
    pictures = images()
    sizes = {resize_for_step(pictures, [24, 32], step).shape[-1] for step in range(20)}
    assert sizes == {24, 32}
    twice = [resize_for_step(pictures, [24, 32], 5).shape for _ in range(2)]
    assert twice[0] == twice[1]
