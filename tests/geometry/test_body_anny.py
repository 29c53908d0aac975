"""overt/geometry/body_anny.py: ten shape numbers that are principal; the extra is named."""

import sys

import numpy as np
import pytest

from overt.errors import DataError
from overt.geometry.body_anny import JOINT_BONES, anny_body, principal_shapes
from overt.geometry.body_capsule import PARENTS, rest_joints
from overt.geometry.body_files import load_body


def test_ten_shapes_are_the_principal_ones() -> None:
    """People of three independent traits: three directions hold all of their differences."""
    rng = np.random.default_rng(0)
    traits = np.linalg.qr(rng.standard_normal((60, 3)))[0].T.reshape(3, 20, 3)
    amounts = rng.standard_normal((200, 3)) * [3.0, 2.0, 1.0]
    people = np.einsum("nt,tvc->nvc", amounts, traits) + 5
    mean, directions = principal_shapes(people)
    np.testing.assert_allclose(mean, people.mean(0))
    lengths = np.linalg.norm(directions.reshape(60, 10), axis=0)
    np.testing.assert_allclose(lengths[:3], [3, 2, 1], rtol=0.25)
    assert lengths[3:].max() < 1e-6


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anny", None)
    anny_body.cache_clear()
    with pytest.raises(DataError, match=r"pip install 'overt\[people\]'.*overt data anny-body"):
        load_body("anny", "model.body.model")


def test_the_joints_are_those_of_smplx() -> None:
    pytest.importorskip("anny")
    anny_body.cache_clear()
    body = anny_body()
    assert len(JOINT_BONES) == body.joint_count == len(PARENTS)
    joints = body.J_regressor @ body.v_template
    # The same side, and the same order from head to foot, as the project's own body.
    own = rest_joints()
    for joint in range(22):
        assert np.sign(own[joint, 0]) == np.sign(round(float(joints[joint, 0]), 2))
    np.testing.assert_allclose(joints[[15, 4, 7], 1], own[[15, 4, 7], 1], atol=0.15)
    np.testing.assert_allclose(body.weights.sum(1), 1, atol=1e-5)
