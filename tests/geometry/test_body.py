"""Bodies: skinning follows its joints, files come back, missing ones are explained."""

from pathlib import Path

import numpy as np
import pytest
import torch

from overt.errors import DataError
from overt.geometry.body import BodyModel, parts_by_joint
from overt.geometry.body_capsule import PARENTS, capsule_body, rest_joints, write_capsule_body
from overt.geometry.body_files import load_body
from overt.geometry.rotation import axis_angle_to_matrix


@pytest.fixture(scope="module")
def model() -> BodyModel:
    return BodyModel(capsule_body())


def rest_pose(count: int = 1, joints: int = 22) -> torch.Tensor:
    return torch.eye(3).expand(count, joints, 3, 3)


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


def test_the_written_file_is_the_same_body(model: BodyModel, tmp_path: Path) -> None:
    path = tmp_path / "SMPLX_NEUTRAL.npz"
    write_capsule_body(path)
    again = BodyModel(load_body(str(path), "model.body.model"))
    shape, pose = torch.randn(1, 10), axis_angle_to_matrix(0.3 * torch.randn(1, 55, 3))
    torch.testing.assert_close(again(shape, pose).vertices, model(shape, pose).vertices)
    assert torch.equal(again.faces, model.faces)
    joints = again.joints_of_metrics(model(shape, rest_pose()).vertices)
    assert joints.shape == (1, 17, 3)


def test_parts_follow_from_the_weights_where_a_file_has_none() -> None:
    file = capsule_body()
    found = parts_by_joint(file)
    assert set(np.unique(found)) <= set(range(1, 25))
    middles = (rest_joints()[[18, 25, 40]] + rest_joints()[[20, 26, 41]]) / 2
    nearest = [np.abs(file.v_template - place).sum(1).argmin() for place in middles]
    assert found[nearest].tolist() == [19, 23, 24]  # forearm, left and right fingers


def test_a_missing_body_model_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no body model is installed.*smpl-x\.is\.tue.*capsule"):
        load_body(str(tmp_path / "SMPLX_NEUTRAL.npz"), "model.body.model")


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


def test_a_regressor_of_another_mesh_is_refused(tmp_path: Path) -> None:
    body, regressor = tmp_path / "body.npz", tmp_path / "J_regressor_h36m.npy"
    write_capsule_body(body)
    np.save(regressor, np.zeros((17, 6890)))
    with pytest.raises(DataError, match=r"\(17, 6890\).*17 joints"):
        load_body(str(body), "model.body.model", str(regressor))
