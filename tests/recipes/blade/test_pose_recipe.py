"""overt/recipes/blade/pose_recipe.py: labels become rotations, and a step has one size."""

import torch

from overt.geometry.body import BodyModel
from overt.geometry.body_capsule import capsule_body
from overt.geometry.rotation import axis_angle_to_matrix
from overt.recipes.blade.pose_recipe import (
    bodies_of,
    both_bodies,
    resize_for_step,
    true_rotations,
)


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


def test_two_bodies_in_one_pass_are_those_of_two_passes() -> None:
    body = BodyModel(capsule_body())
    first, second = (true_rotations(0.3 * torch.randn(2, 52, 3)) for _ in range(2))
    shapes = torch.randn(2, 10), torch.randn(2, 10)
    together = both_bodies(body, (first.requires_grad_(), second), shapes)
    for found, rotations, shape in zip(together, (first, second), shapes, strict=True):
        for part, expected in zip(found, bodies_of(body, rotations, shape), strict=True):
            torch.testing.assert_close(part, expected, atol=1e-5, rtol=1e-5)
    assert together[0].vertices.requires_grad
    assert not together[1].vertices.requires_grad
