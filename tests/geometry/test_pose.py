"""Mirrored and turned poses are those of the mirrored and turned body."""

import torch

from overt.geometry.body import BodyModel
from overt.geometry.body_capsule import capsule_body
from overt.geometry.pose import PAIRS, mirror_pose, rotate_in_plane
from overt.geometry.rotation import axis_angle_to_matrix, rotation_about_z


def joints_of(root: torch.Tensor, body: torch.Tensor) -> torch.Tensor:
    model = BodyModel(capsule_body())
    rotations = axis_angle_to_matrix(torch.cat([root[None], body])[None])
    return model.joints(torch.zeros(1, 10), rotations)[0, :22]


def test_the_joints_of_a_mirrored_pose_are_the_mirrored_joints() -> None:
    root, body = 0.5 * torch.randn(3), 0.4 * torch.randn(21, 3)
    hands = 0.1 * torch.randn(2, 15, 3)
    mirrored_root, mirrored_body, left, right = mirror_pose(root, body, *hands)
    order = list(range(22))
    for one, other in PAIRS:
        order[one], order[other] = other, one
    expected = joints_of(root, body)[order] * torch.tensor([-1.0, 1.0, 1.0])
    torch.testing.assert_close(joints_of(mirrored_root, mirrored_body), expected)
    again = mirror_pose(mirrored_root, mirrored_body, left, right)
    for found, given in zip(again, (root, body, *hands), strict=True):
        torch.testing.assert_close(found, given)


def test_a_turned_picture_turns_the_root() -> None:
    root, body = 0.5 * torch.randn(3), 0.4 * torch.randn(21, 3)
    model = BodyModel(capsule_body())
    rotations = axis_angle_to_matrix(torch.cat([root[None], body])[None])
    turned = rotations.clone()
    turned[:, 0] = rotate_in_plane(rotations[:, 0], torch.tensor([30.0]))
    before, after = (model.joints(torch.zeros(1, 10), pose)[0] for pose in (rotations, turned))
    turn = rotation_about_z(torch.deg2rad(torch.tensor(-30.0)))
    torch.testing.assert_close((after - after[0]), (before - before[0]) @ turn.T)
