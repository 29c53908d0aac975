"""Bodies: skinning follows its joints, files come back, missing ones are explained."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from overt.geometry.body import _INDICES, BodyModel, chain, generations, parts_by_joint
from overt.geometry.body_capsule import PARENTS, capsule_body, rest_joints
from overt.geometry.rotation import axis_angle_to_matrix


@pytest.fixture(scope="module")
def model() -> BodyModel:
    return BodyModel(capsule_body())


def rest_pose(count: int = 1, joints: int = 22) -> torch.Tensor:
    return torch.eye(3).expand(count, joints, 3, 3)


def test_turning_the_root_turns_the_whole_body_about_the_pelvis(model: BodyModel) -> None:
    shape = torch.randn(1, 10)
    turn = axis_angle_to_matrix(torch.tensor([0.3, -0.5, 0.2]))
    pose = rest_pose().clone()
    pose[:, 0] = turn
    before, after = model(shape, rest_pose()), model(shape, pose)
    pelvis = before.joints[:, :1]
    torch.testing.assert_close(after.joints[:, :1], pelvis)
    expected = (before.vertices - pelvis) @ turn.T + pelvis
    torch.testing.assert_close(after.vertices, expected, atol=1e-5, rtol=0)


def test_bending_an_elbow_moves_only_what_hangs_on_it(model: BodyModel) -> None:
    pose = rest_pose().clone()
    pose[:, 18] = axis_angle_to_matrix(torch.tensor([0.0, 1.0, 0.0]))
    before, after = model(torch.zeros(1, 10), rest_pose()), model(torch.zeros(1, 10), pose)
    moved = (after.joints - before.joints).norm(dim=-1)[0] > 1e-6
    below = {joint for joint in range(55) if 18 in ancestors(joint)}
    assert set(torch.nonzero(moved).flatten().tolist()) == below


def ancestors(joint: int) -> set[int]:
    found = set()
    while PARENTS[joint] >= 0:
        joint = PARENTS[joint]
        found.add(joint)
    return found


def test_shape_zero_scales_the_person(model: BodyModel) -> None:
    shape = torch.zeros(2, 10)
    shape[1, 0] = 2.0
    body = model(shape, rest_pose(2))
    torch.testing.assert_close(body.vertices[1], 1.1 * body.vertices[0])
    torch.testing.assert_close(model.joints(shape, rest_pose(2)), body.joints)


@pytest.mark.parametrize(("available", "used"), [(10, 10), (20, 10), (300, 300), (400, 300)])
def test_all_shape_directions_of_a_file_are_used_and_none_of_the_expression(
    available: int, used: int
) -> None:
    file = capsule_body()
    directions = np.random.default_rng(0).normal(0, 0.01, (len(file.v_template), 3, available))
    body = BodyModel(replace(file, shapedirs=directions.astype(np.float32)))
    assert body.shape_numbers == used
    shape = torch.zeros(1, used)
    shape[0, -1] = 2.0
    found = body(shape, rest_pose(joints=55))
    expected = file.v_template + 2 * directions[..., used - 1]
    np.testing.assert_allclose(found.vertices[0].numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(
        body.joints(shape, rest_pose(joints=55))[0, 0], file.J_regressor[0] @ expected, atol=1e-5
    )


def test_parts_follow_from_the_weights_where_a_file_has_none() -> None:
    file = capsule_body()
    found = parts_by_joint(file)
    assert set(np.unique(found)) <= set(range(1, 25))
    middles = (rest_joints()[[18, 25, 40]] + rest_joints()[[20, 26, 41]]) / 2
    nearest = [np.abs(file.v_template - place).sum(1).argmin() for place in middles]
    assert found[nearest].tolist() == [19, 23, 24]  # forearm, left and right fingers


def test_generations_of_joints_are_one_joint_after_the_other() -> None:
    """The chain over whole generations, against the plain loop over joints."""
    torch.manual_seed(0)
    rotations = axis_angle_to_matrix(torch.randn(2, len(PARENTS), 3))
    rest = torch.randn(2, len(PARENTS), 3)
    turns, places = [rotations[:, 0]], [rest[:, 0]]
    for joint, parent in enumerate(PARENTS[1:], start=1):
        offset = (rest[:, joint] - rest[:, parent])[..., None]
        places.append(places[parent] + (turns[parent] @ offset).squeeze(-1))
        turns.append(turns[parent] @ rotations[:, joint])
    found = chain(rotations, rest, tuple(PARENTS))
    torch.testing.assert_close(found[0], torch.stack(turns, dim=1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1], torch.stack(places, dim=1), atol=1e-5, rtol=1e-5)
    assert len(generations(tuple(PARENTS))) == 11


def test_a_plan_s_fake_tensors_are_not_kept(model: BodyModel) -> None:
    """Two plans, then a real body: each with tensors of its own kind."""
    rotations = torch.eye(3).repeat(1, 55, 1, 1)
    _INDICES.clear()
    for _ in range(2):
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with mode:
            fake = torch.empty(1, 55, 3, 3)
            assert model(torch.empty(1, 10), fake).joints.shape == (1, 55, 3)
    assert not _INDICES
    joints = model(torch.zeros(1, 10), rotations).joints
    torch.testing.assert_close(joints[0], model.rest_places)
    assert _INDICES
