"""overt/geometry/body_capsule.py: a made-up person that stands as designed."""

import numpy as np
import pytest
import torch

from overt.geometry.body import BodyModel
from overt.geometry.body_capsule import capsule_body, rest_joints


def rest_pose(count: int = 1, joints: int = 22) -> torch.Tensor:
    return torch.eye(3).expand(count, joints, 3, 3)


@pytest.fixture(scope="module")
def model() -> BodyModel:
    return BodyModel(capsule_body())


def test_the_capsule_person_stands_as_designed(model: BodyModel) -> None:
    body = model(torch.zeros(1, 10), rest_pose())
    np.testing.assert_allclose(body.joints[0].numpy(), rest_joints(), atol=1e-6)
    height = body.vertices[0, :, 1].max() - body.vertices[0, :, 1].min()
    assert 1.6 < height < 1.85
    file = capsule_body()
    np.testing.assert_allclose(file.weights.sum(1), 1, atol=1e-6)
    assert (file.weights >= 0).all()
    assert len(file.parents) == 55
    assert set(np.unique(file.part)) <= set(range(1, 25))


def test_every_capsule_is_closed_and_looks_outwards() -> None:
    file = capsule_body()
    edges = np.concatenate([file.f[:, [0, 1]], file.f[:, [1, 2]], file.f[:, [2, 0]]])
    there = {tuple(edge) for edge in edges.tolist()}
    assert len(there) == len(edges)  # no edge twice in one direction
    assert all((b, a) in there for a, b in there)  # and each once in the other
    corners = file.v_template[file.f]
    volume = np.einsum("fi,fi->f", corners[:, 0], np.cross(corners[:, 1], corners[:, 2])).sum() / 6
    assert volume > 0.03
