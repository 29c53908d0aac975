"""Files of the real sizes and layouts of SMPL, SMPL-X and HumanData, small in bytes.

The surface is that of the project's own body, its vertices repeated up to the real numbers, so that
both bodies have the same shape and every vertex of SMPL lies on SMPL-X.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from overt.data.people.conventions import CONVENTIONS
from overt.data.people.human_data import HumanData
from overt.data.people.scenes import PeopleOptions
from overt.data.people.synthetic import write_people
from overt.geometry.body import BODY_JOINTS, SMPL_JOINTS, BodyFile
from overt.geometry.body_capsule import capsule_body, write_capsule_body

SMPL_VERTICES, SMPLX_VERTICES = 6890, 10475
ROOT = 2**32 - 1  # the parent of the root


def repeated(rows: np.ndarray, count: int) -> np.ndarray:
    return rows[np.arange(count) % len(rows)]


def padded(regressor: np.ndarray, count: int) -> np.ndarray:
    """A regressor that looks at the first copy of each vertex only."""
    return np.pad(regressor, ((0, 0), (0, count - regressor.shape[1])))


def body_arrays(count: int, joints: int, hands: bool) -> dict[str, Any]:
    body = capsule_body()
    weights, regressor, parents = skeleton(body, joints)
    arrays = {
        "v_template": repeated(body.v_template, count),
        "f": body.f.astype(np.uint32),
        "shapedirs": repeated(body.shapedirs, count),
        "posedirs": np.zeros((count, 3, 9 * (joints - 1)), np.float32),
        "J_regressor": padded(regressor, count),
        "weights": repeated(weights, count),
        "kintree_table": np.stack([parents, np.arange(joints)]).astype(np.uint32),
    }
    if hands:
        bent = np.random.default_rng(3).uniform(-0.4, 0.4, 45)
        arrays |= {"hands_meanl": bent, "hands_meanr": bent[::-1].copy()}
    return arrays


def skeleton(body: BodyFile, joints: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, regressor and parents; with 24 joints, a hand has one."""
    parents = np.array(body.parents)
    parents[0] = ROOT
    if joints != SMPL_JOINTS:
        return body.weights, body.J_regressor, parents
    weights = np.concatenate(
        [
            body.weights[:, :BODY_JOINTS],
            body.weights[:, 25:40].sum(1, keepdims=True),
            body.weights[:, 40:].sum(1, keepdims=True),
        ],
        axis=1,
    )
    weights[:, 15] += body.weights[:, 22:25].sum(1)  # jaw and eyes
    regressor = body.J_regressor[[*range(BODY_JOINTS), 28, 43]]
    return weights, regressor, np.array([*parents[:BODY_JOINTS], 20, 21])


def write_bodies(folder: Path) -> dict[str, str]:
    """Write all files of the bodies; what they are called in the settings."""
    from scipy.sparse import coo_matrix, csc_matrix

    folder.mkdir(parents=True, exist_ok=True)
    body = capsule_body()
    np.savez_compressed(folder / "SMPLX_NEUTRAL.npz", **body_arrays(SMPLX_VERTICES, 55, True))
    smpl = body_arrays(SMPL_VERTICES, SMPL_JOINTS, False)
    smpl["J_regressor"] = csc_matrix(smpl["J_regressor"])
    (folder / "SMPL_NEUTRAL.pkl").write_bytes(pickle.dumps(smpl))
    assert body.joints17 is not None
    np.save(folder / "J_regressor_h36m.npy", padded(body.joints17, SMPL_VERTICES))
    extra = np.zeros((9, len(body.v_template)), np.float32)
    extra[:2] = body.J_regressor[[2, 1]]
    np.save(folder / "J_regressor_extra.npy", padded(extra, SMPL_VERTICES))
    for name, counts in {
        "smplx2smpl": (SMPL_VERTICES, SMPLX_VERTICES),
        "smpl2smplx": (SMPLX_VERTICES, SMPL_VERTICES),
    }.items():
        targets, sources = counts
        # Each vertex from two that lie at its place, and one of its normals.
        original = np.arange(targets) % len(body.v_template)
        rows = np.repeat(np.arange(targets), 3)
        columns = np.stack([original, original + len(body.v_template), original + sources], 1)
        values = np.tile([0.25, 0.75, 0.1], targets)
        matrix = coo_matrix((values, (rows, columns.ravel())), shape=(targets, 2 * sources))
        (folder / f"{name}_deftrafo_setup.pkl").write_bytes(pickle.dumps({"mtx": matrix.tocsc()}))
    return {
        "model.body.model": str(folder / "SMPLX_NEUTRAL.npz"),
        "model.body.smpl": str(folder / "SMPL_NEUTRAL.pkl"),
        "model.body.smpl_regressor": str(folder / "J_regressor_extra.npy"),
        "model.body.smpl_joint_regressor": str(folder / "J_regressor_h36m.npy"),
        "model.body.transfer": str(folder / "smplx2smpl_deftrafo_setup.pkl"),
    }


def human_data_keypoints(people: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Key points (N, 39, 3) as rendered, in MMHuman3D's 190 and with their mask."""
    wide = np.zeros((len(people), 190, 3), np.float32)
    mask = np.zeros(190, np.uint8)
    for column, name in enumerate(CONVENTIONS["people"]):
        if not name.startswith("coco_"):
            place = CONVENTIONS["human_data"].index(name)
            wide[:, place], mask[place] = people[:, column], 1
    return wide, mask


def write_annotations(path: Path, columns: Mapping[str, Any], **more: Any) -> None:
    """A HumanData file as MMHuman3D writes it: compressed key points, dicts of arrays."""
    content: dict[str, Any] = {name: value for name, value in columns.items() if "/" not in name}
    wide, mask = human_data_keypoints(columns["keypoints2d"])
    content |= {
        "keypoints2d": wide[:, mask > 0],
        "keypoints2d_mask": mask,
        "__keypoints_compressed__": True,
        "__data_len__": len(wide),
        "__key_strict__": False,
        "meta": {"gender": ["m", "f"] * len(wide)},
    }
    for group in ("smpl", "smplx"):
        inside = {
            name.partition("/")[2]: value
            for name, value in columns.items()
            if name.startswith(f"{group}/")
        }
        if inside:
            content[group] = inside
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **(content | more))  # type: ignore[arg-type]


def rendered(root: Path, count: int = 2, size: int = 32) -> dict[str, np.ndarray]:
    """The columns of a few rendered people, whose pictures lie in ROOT/datasets/people."""
    options = PeopleOptions(size=size, seed=5, framing="portrait", body="capsule")
    write_people(root, "people", count, options)
    data = HumanData.load(root / "preprocessed_datasets" / "people.npz")
    return {name: np.array(column) for name, column in data.columns.items()}


def of_smpl(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value for name, value in columns.items() if not name.startswith("smplx/")}


def write_dressed_body(path: Path) -> Path:
    """Write the project's own body, marked as one whose people wear clothes; return its path."""
    write_capsule_body(path)
    with np.load(path) as arrays:
        content = dict(arrays) | {"overt_body": np.array("anny")}
    np.savez(path, **content)
    return path
