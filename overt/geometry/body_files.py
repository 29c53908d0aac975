"""Body models from disk: SMPL-X as .npz, SMPL as .npz or, through the package smplx, as .pkl.

The files are licensed and never shipped; `capsule` names the project's own body instead.
"""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError
from overt.geometry.body import BodyFile
from overt.geometry.body_capsule import capsule_body

CAPSULE = "capsule"
NEEDED = (
    "v_template", "f", "shapedirs", "posedirs", "J_regressor", "weights", "kintree_table",
)  # fmt: skip
WHERE = (
    "Register at smpl-x.is.tue.mpg.de (SMPL: smpl.is.tue.mpg.de), download the body models and "
    "name the file, such as body_models/smplx/SMPLX_NEUTRAL.npz; or use the project's own body: "
)


def load_body(name: str, key: str, joint_regressor: str | None = None) -> BodyFile:
    """The body that the setting `key` names: capsule, or the path of a body model file.

    `joint_regressor` is a .npy file (17, V) of the joints that the metrics compare.
    """
    if name == CAPSULE:
        return capsule_body()
    path = Path(name)
    if not path.is_file():
        raise DataError(f"{key}={name}: no body model is installed there. {WHERE}{key}={CAPSULE}")
    if path.suffix == ".npz":
        body = _read_npz(path, key)
    elif path.suffix == ".pkl":
        body = _read_with_smplx(path, key)
    else:
        raise DataError(f"{key}={name}: a body model is a .npz or .pkl file")
    if joint_regressor is not None:
        body = _with_regressor(body, Path(joint_regressor))
    return body


def _read_npz(path: Path, key: str) -> BodyFile:
    try:
        content = np.load(path, allow_pickle=False)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{key}={path}: not a readable body model ({error}); get it again"
        ) from None
    with content:
        missing = [name for name in NEEDED if name not in content.files]
        if missing:
            raise DataError(
                f"{key}={path}: a body model has {', '.join(missing)} too; this file has "
                f"{', '.join(content.files)}"
            )
        arrays: dict[str, Any] = {name: content[name] for name in NEEDED}
        extra = {
            name: content[name]
            for name in ("hands_meanl", "hands_meanr", "part", "J_regressor_h36m")
            if name in content.files
        }
    return _file_of(arrays, extra)


def _file_of(arrays: dict[str, Any], extra: dict[str, Any]) -> BodyFile:
    hands = None
    if "hands_meanl" in extra:
        hands = np.stack([extra["hands_meanl"], extra["hands_meanr"]]).reshape(2, -1, 3)
    parents = arrays["kintree_table"][0].astype(np.int64)
    parents[0] = -1  # written as 2 ** 32 - 1
    return BodyFile(
        v_template=_float(arrays["v_template"]),
        f=arrays["f"].astype(np.int64),
        shapedirs=_float(arrays["shapedirs"]),
        posedirs=_float(arrays["posedirs"]),
        J_regressor=_float(arrays["J_regressor"]),
        weights=_float(arrays["weights"]),
        parents=tuple(parents.tolist()),
        hands_mean=None if hands is None else _float(hands),
        part=extra.get("part"),
        joints17=extra.get("J_regressor_h36m"),
    )


def _read_with_smplx(path: Path, key: str) -> BodyFile:
    """A licensed .pkl file, which only the package smplx can read: it is a program."""
    try:
        import smplx
    except ImportError:
        raise DataError(
            f"{key}={path}: .pkl files are read by the package smplx; pip install 'overt[smplx]', "
            "or convert the file to .npz"
        ) from None
    kind = smplx.SMPLX if "SMPLX" in path.name.upper() else smplx.SMPL
    model = kind(str(path))
    count = len(model.v_template)
    arrays = {
        "v_template": model.v_template.numpy(),
        "f": np.asarray(model.faces),
        "shapedirs": model.shapedirs.numpy(),
        "posedirs": model.posedirs.numpy().T.reshape(count, 3, -1),
        "J_regressor": model.J_regressor.numpy(),
        "weights": model.lbs_weights.numpy(),
        "kintree_table": model.parents.numpy()[None],
    }
    return _file_of(arrays, {})


def _with_regressor(body: BodyFile, path: Path) -> BodyFile:
    if not path.is_file():
        raise DataError(f"joint regressor {path}: there is no such file (J_regressor_h36m.npy)")
    regressor = np.load(path, allow_pickle=False)
    expected = (17, len(body.v_template))
    if regressor.shape != expected:
        raise DataError(
            f"joint regressor {path}: its shape is {regressor.shape}, but this body needs "
            f"{expected}: 17 joints of Human3.6M from its vertices"
        )
    return replace(body, joints17=_float(regressor))


def _float(array: NDArray[Any]) -> NDArray[np.float32]:
    return np.ascontiguousarray(array, dtype=np.float32)
