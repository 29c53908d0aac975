"""overt/geometry/body_files.py: body models come back from files; what is no body is explained."""

from pathlib import Path

import numpy as np
import pytest
import real_files
import torch

from overt.errors import DataError
from overt.geometry.body import BodyModel
from overt.geometry.body_capsule import capsule_body, write_capsule_body
from overt.geometry.body_files import load_body
from overt.geometry.rotation import axis_angle_to_matrix


def rest_pose(count: int = 1, joints: int = 22) -> torch.Tensor:
    return torch.eye(3).expand(count, joints, 3, 3)


BODY = capsule_body()


@pytest.fixture(scope="module")
def model() -> BodyModel:
    return BodyModel(capsule_body())


def test_the_written_file_is_the_same_body(model: BodyModel, tmp_path: Path) -> None:
    path = tmp_path / "SMPLX_NEUTRAL.npz"
    write_capsule_body(path)
    again = BodyModel(load_body(str(path), "model.body.model"))
    shape, pose = torch.randn(1, 10), axis_angle_to_matrix(0.3 * torch.randn(1, 55, 3))
    torch.testing.assert_close(again(shape, pose).vertices, model(shape, pose).vertices)
    assert torch.equal(again.faces, model.faces)
    joints = again.joints_of_metrics(model(shape, rest_pose()).vertices)
    assert joints.shape == (1, 17, 3)


def test_a_missing_body_model_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"no body model is installed.*smpl-x\.is\.tue.*body\.model=anny"
    ):
        load_body(str(tmp_path / "SMPLX_NEUTRAL.npz"), "model.body.model")
    # No body of rendered people replaces that of labels.
    for key in ("model.body.smpl", "--smpl"):
        with pytest.raises(DataError, match=r"Register at smpl\.is\.tue.*SMPL_NEUTRAL\.pkl$"):
            load_body(str(tmp_path / "SMPL_NEUTRAL.pkl"), key)
    with pytest.raises(DataError, match=r"Register at smpl-x\.is\.tue.*SMPLX_NEUTRAL\.npz$"):
        load_body(str(tmp_path / "SMPLX_NEUTRAL.npz"), "--smplx")


def test_another_file_is_refused_with_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, v_template=np.zeros((3, 3)), f=np.zeros((1, 3)))
    with pytest.raises(DataError, match=r"shapedirs.*this file has v_template, f"):
        load_body(str(path), "model.body.model")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weights": np.array(["a"])}, "weights is not readable.*array of numbers"),
        ({"weights": np.array([None])}, "weights is not readable.*allow_pickle=False"),
        ({"f": np.zeros((5, 4), np.uint32)}, r"shape of f is \(5, 4\).*has \(6, 3\)"),
        ({"posedirs": np.zeros((9, 3, 207))}, r"shape of posedirs is \(9, 3, 207\).*55 joints"),
        ({"part": np.zeros(3, np.uint8)}, r"shape of part is \(3,\)"),
        ({"v_template": BODY.v_template * np.nan}, "v_template has non-finite values"),
        ({"shapedirs": BODY.shapedirs[..., :9]}, "9 shape directions, expected at least 10"),
        ({"f": BODY.f + len(BODY.v_template)}, "has faces with vertices other than its"),
        ({"kintree_table": np.full((2, 55), 54)}, "parent is not an earlier joint"),
    ],
)
def test_an_array_that_is_no_part_of_a_body_is_refused(
    changed: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "body.npz"
    write_capsule_body(path)
    with np.load(path) as content:
        arrays = {name: content[name] for name in content.files}
    np.savez(path, **arrays | changed)
    with pytest.raises(DataError, match=f"model.body.model=.*{message}"):
        load_body(str(path), "model.body.model")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "body.npz"
    write_capsule_body(path)
    data = bytearray(path.read_bytes())
    data[100:4000] = bytes(3900)  # within v_template, the first one
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"v_template is not readable.*get it again"):
        load_body(str(path), "model.body.model")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_joints_of_a_file_are_single_precision(dtype: type, tmp_path: Path) -> None:
    """In that of the vertices they can be multiplied with."""
    path = tmp_path / "body.npz"
    write_capsule_body(path)
    with np.load(path) as content:
        arrays = {name: content[name] for name in content.files}
    np.savez(path, **arrays | {"J_regressor_h36m": BODY.joints17.astype(dtype)})
    joints = load_body(str(path), "model.body.model").joints17
    assert joints.dtype == np.float32
    np.testing.assert_allclose(joints, BODY.joints17, rtol=1e-6)


def test_a_regressor_of_another_mesh_is_refused(tmp_path: Path) -> None:
    body, regressor = tmp_path / "body.npz", tmp_path / "J_regressor_h36m.npy"
    write_capsule_body(body)
    np.save(regressor, np.zeros((17, 6890)))
    with pytest.raises(DataError, match=r"\(17, 6890\).*17 joints"):
        load_body(str(body), "model.body.model", str(regressor))


@pytest.mark.parametrize("value", [np.nan, "a", 1j])
def test_a_regressor_holds_finite_numbers(tmp_path: Path, value: object) -> None:
    body, regressor = tmp_path / "body.npz", tmp_path / "J_regressor_h36m.npy"
    write_capsule_body(body)
    np.save(regressor, np.full((17, len(BODY.v_template)), value))
    with pytest.raises(DataError, match="not a matrix of finite numbers"):
        load_body(str(body), "model.body.model", str(regressor))


def test_the_body_of_smpl_is_not_the_body_of_posenet(tmp_path: Path) -> None:
    path = tmp_path / "SMPL_NEUTRAL.npz"
    np.savez(path, **real_files.body_arrays(len(capsule_body().v_template), 24, hands=False))
    assert load_body(str(path), "model.body.smpl").joint_count == 24
    with pytest.raises(DataError, match=r"24 joints, expected the 55 .* goes to model\.body\.smpl"):
        load_body(str(path), "model.body.model")
