"""Body models from disk: SMPL-X and SMPL, as .npz or as the .pkl that is published.

The files are licensed and never shipped; `anny` and `capsule` name the bodies of rendered people.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError
from overt.files.bounds import open_arrays
from overt.geometry.body import (
    HAND_JOINTS,
    SHAPE_NUMBERS,
    SMPL_JOINTS,
    SMPLX_JOINTS,
    BodyFile,
)
from overt.geometry.body_anny import ANNY, SHIPPED_ANNY
from overt.geometry.body_capsule import capsule_body
from overt.geometry.smpl_pickle import array_of, read_smpl_pickle

CAPSULE = "capsule"
# Settings whose body has the joints of SMPL-X; the others may name one of SMPL.
NEED_SMPLX = ("model.body.model", "data.synthetic.body", "--body")
OF_SMPL = ("model.body.smpl", "--smpl")
NEEDED = (
    "v_template", "f", "shapedirs", "posedirs", "J_regressor", "weights", "kintree_table",
)  # fmt: skip
OPTIONAL = ("hands_meanl", "hands_meanr", "part", "J_regressor_h36m")
WHERE = (
    "Register at smpl-x.is.tue.mpg.de, download the body models and name the file, such as "
    "body_models/smplx/SMPLX_NEUTRAL.npz"
)
WHERE_SMPL = (
    "Register at smpl.is.tue.mpg.de, download the body models and name the file, such as "
    "body_models/smpl/SMPL_NEUTRAL.pkl"
)
CONVERT = (
    "A body model is read from .npz as well: convert the file once, by numpy.savez with the arrays "
    f"{', '.join(NEEDED)}."
)


def load_body(
    name: str,
    key: str,
    joint_regressor: str | None = None,
    regressor_key: str = "model.body.joint_regressor",
) -> BodyFile:
    """The body that the setting `key` names: anny, capsule, or the path of a body model file.

    `joint_regressor` is a .npy file (17, V) of the joints that the metrics compare, named by the
    setting `regressor_key`.
    """
    if name == CAPSULE:
        return capsule_body()
    if name == ANNY:
        return _shipped_anny()
    path, title = Path(name), f"{key}={name}"
    if not path.is_file():
        remedy = WHERE_SMPL if key in OF_SMPL else WHERE
        if key in NEED_SMPLX:
            remedy += f"; or use the body that comes with overt, for rendered people: {key}={ANNY}"
        raise DataError(f"{title}: no body model is installed there. {remedy}")
    rendered_as = None
    if path.suffix == ".npz":
        arrays, rendered_as = _read_npz(path, title)
    elif path.suffix == ".pkl":
        arrays = _read_pickle(path, title)
    else:
        raise DataError(f"{title}: a body model is a .npz or .pkl file")
    _check_shapes(arrays, title)
    _check_joints(arrays["kintree_table"].shape[1], key, title)
    _check_values(arrays, title)
    body = replace(_file_of(arrays), rendered_as=rendered_as)
    if joint_regressor is not None:
        body = _with_regressor(body, Path(joint_regressor), regressor_key)
    return body


@cache
def _shipped_anny() -> BodyFile:
    return load_body(str(SHIPPED_ANNY), "model.body.model")


def _read_npz(path: Path, title: str) -> tuple[dict[str, NDArray[Any]], str | None]:
    """The arrays of a body, and the mark of one that people are rendered with."""
    try:
        content = open_arrays(path)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{title}: not a readable body model ({error}); get it again") from None
    with content:
        mark = str(content["overt_body"]) if "overt_body" in content else None
        return _arrays_of(content, title), mark


def _read_pickle(path: Path, title: str) -> dict[str, NDArray[Any]]:
    try:
        content = read_smpl_pickle(path, title)
    except DataError as refusal:
        raise DataError(f"{refusal} {CONVERT}") from None
    return _arrays_of(content, title)


def _arrays_of(content: Mapping[str, object], title: str) -> dict[str, NDArray[Any]]:
    """The entries that a body is made of."""
    missing = [name for name in NEEDED if name not in content]
    if missing:
        raise DataError(
            f"{title}: a body model has {', '.join(missing)} too; this file has "
            f"{', '.join(map(str, content))}"
        )
    arrays = {}
    for name in (*NEEDED, *OPTIONAL):
        if name not in content:
            continue
        try:
            arrays[name] = array_of(content[name])
        # A damaged entry stops with almost any exception: zlib.error, IndexError, KeyError, ...
        except Exception as error:
            raise DataError(
                f"{title}: {name} is not readable ({type(error).__name__}: {error}). The file is "
                "damaged or of another kind; get it again."
            ) from error
    return arrays


def _check_shapes(arrays: dict[str, NDArray[Any]], title: str) -> None:
    vertices, joints = arrays["v_template"].size // 3, arrays["kintree_table"].size // 2
    expected = {
        "v_template": (vertices, 3),
        "f": (arrays["f"].size // 3, 3),
        "shapedirs": (vertices, 3, arrays["shapedirs"].size // max(3 * vertices, 1)),
        "posedirs": (vertices, 3, 9 * (joints - 1)),
        "J_regressor": (joints, vertices),
        "weights": (vertices, joints),
        "kintree_table": (2, joints),
        "hands_meanl": (3 * HAND_JOINTS,),
        "hands_meanr": (3 * HAND_JOINTS,),
        "part": (vertices,),
        "J_regressor_h36m": (17, vertices),
    }
    for name, array in arrays.items():
        if array.shape != expected[name]:
            raise DataError(
                f"{title}: the shape of {name} is {array.shape}, but a body of {vertices} vertices "
                f"and {joints} joints has {expected[name]}; name a file of SMPL or SMPL-X"
            )


def _check_values(arrays: dict[str, NDArray[Any]], title: str) -> None:
    """Reject a file of the right shapes whose numbers make no body."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise DataError(f"{title}: {name} has non-finite values (NaN or Inf); get it again")
    vertices, joints = arrays["weights"].shape
    faces, parents = arrays["f"], arrays["kintree_table"][0, 1:].astype(np.int64)
    shape_numbers = arrays["shapedirs"].shape[2]
    if shape_numbers < SHAPE_NUMBERS:
        problem = f"has {shape_numbers} shape directions, expected at least {SHAPE_NUMBERS}"
    elif faces.min(initial=0) < 0 or faces.max(initial=0) >= vertices:
        problem = f"has faces with vertices other than its {vertices}"
    elif not ((parents >= 0) & (parents < np.arange(1, joints))).all():
        problem = "has joints whose parent is not an earlier joint (kintree_table)"
    else:
        return
    raise DataError(f"{title}: this body {problem}; get it again, or name another file")


def _check_joints(joints: int, key: str, title: str) -> None:
    if key not in NEED_SMPLX or joints == SMPLX_JOINTS:
        return
    hint = "; SMPL's body goes to model.body.smpl" if joints == SMPL_JOINTS else ""
    raise DataError(
        f"{title}: this body has {joints} joints, expected the {SMPLX_JOINTS} of SMPL-X; name "
        f"SMPLX_NEUTRAL.npz{hint}"
    )


def _file_of(arrays: dict[str, NDArray[Any]]) -> BodyFile:
    hands = None
    if "hands_meanl" in arrays and "hands_meanr" in arrays:
        hands = _float(np.stack([arrays["hands_meanl"], arrays["hands_meanr"]]).reshape(2, -1, 3))
    parents = arrays["kintree_table"][0].astype(np.int64)
    parents[0] = -1  # written as 2 ** 32 - 1
    posedirs, joints17 = arrays["posedirs"], arrays.get("J_regressor_h36m")
    if not posedirs.any():
        posedirs = posedirs[..., :0]  # 80 MB of zeros in each process that has the body of anny
    return BodyFile(
        v_template=_float(arrays["v_template"]),
        f=arrays["f"].astype(np.int64),
        shapedirs=_float(arrays["shapedirs"]),
        posedirs=_float(posedirs),
        J_regressor=_float(arrays["J_regressor"]),
        weights=_float(arrays["weights"]),
        parents=tuple(parents.tolist()),
        hands_mean=hands,
        part=arrays.get("part"),
        joints17=None if joints17 is None else _float(joints17),
    )


def _with_regressor(body: BodyFile, path: Path, key: str) -> BodyFile:
    regressor = read_regressor(path, key, len(body.v_template))
    if len(regressor) != 17:
        raise DataError(
            f"{key}={path}: its shape is {regressor.shape}, but this body needs "
            f"{(17, len(body.v_template))}: 17 joints of Human3.6M from its vertices"
        )
    return replace(body, joints17=_float(regressor))


def read_regressor(path: Path, key: str, vertices: int) -> NDArray[Any]:
    """A regressor (joints, vertices) that the setting `key` names."""
    if not path.is_file():
        raise DataError(f"{key}={path}: no such file (J_regressor_*.npy)")
    try:
        regressor = open_arrays(path)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{key}={path}: not a readable .npy file ({error}); get it again") from None
    shape: tuple[int, ...] = getattr(regressor, "shape", ())
    if len(shape) != 2 or shape[1] != vertices:
        hint = " This one is for SMPL's vertices." if 6890 in shape else ""
        raise DataError(
            f"{key}={path}: its shape is {shape}, but a body of {vertices} vertices needs "
            f"(N, {vertices}): 17 joints of Human3.6M, or 9 extra ones.{hint}"
        )
    if regressor.dtype.kind not in "fiu" or not np.isfinite(regressor).all():
        raise DataError(f"{key}={path}: not a matrix of finite numbers; get it again")
    return np.asarray(regressor)


def _float(array: NDArray[Any]) -> NDArray[np.float32]:
    return np.ascontiguousarray(array, dtype=np.float32)
