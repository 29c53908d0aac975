"""overt/data/people/poses.py: limbs point where drawn, joints bend within their limits."""

import numpy as np
import pytest
import torch

from overt.data.people.poses import ARMS, ELBOW, KINDS, KNEE, LEGS, draw_pose
from overt.geometry.body import BodyModel
from overt.geometry.body_capsule import capsule_body
from overt.geometry.rotation import axis_angle_to_matrix


@pytest.fixture(scope="module")
def model() -> BodyModel:
    return BodyModel(capsule_body())


def test_every_joint_keeps_within_its_limits(model: BodyModel) -> None:
    rest = model.rest_places[:22].double().numpy()
    seen = set()
    poses = []
    for seed in range(60):
        body, hands, kind = draw_pose(np.random.default_rng(seed), rest)
        seen.add(kind)
        poses.append(body)
        for hinges, limits in ((ARMS, ELBOW), (LEGS, KNEE)):
            for _, hinge, _ in hinges:
                assert limits[0] - 1e-6 <= np.linalg.norm(body[hinge - 1]) <= limits[1] + 1e-6
        assert np.abs(hands).max() < 0.4
        assert np.isfinite(body).all()
    assert seen == set(KINDS)
    # Knees bend backward, elbows forward: the ankle ends behind the knee, never before it.
    turns = torch.eye(3).repeat(len(poses), 22, 1, 1)
    knees = np.stack([pose[[3, 4]] for pose in poses])
    turns[:, [4, 5]] = axis_angle_to_matrix(torch.from_numpy(knees).float())
    joints = model.joints(torch.zeros(len(poses), 10), turns)
    shins = joints[:, [7, 8]] - joints[:, [4, 5]]
    assert float(shins[..., 2].max()) < 0.05


def test_a_draw_depends_on_its_generator_alone(model: BodyModel) -> None:
    rest = model.rest_places[:22].double().numpy()
    first, second = (draw_pose(np.random.default_rng(7), rest) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    assert first[2] == second[2]
