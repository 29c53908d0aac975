"""BEDLAM-CC annotations: a dictionary of torch.save named .npz, in either of its two forms."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.data.people.human_data import SMPLX_SHAPES, HumanData
from overt.errors import DataError


def read_bedlam(path: str | Path) -> HumanData:
    """Return its rows as HumanData columns, with `pelvis_camcoord` or with `smplx`."""
    import torch

    file = Path(path)
    if not file.is_file():
        raise DataError(f"{file}: no such annotation file")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{file}: not a dictionary of torch.save with plain values ({reason}); nothing of it "
            "was run. For .npz files of MMHuman3D use layout=humandata."
        ) from None
    if not isinstance(content, Mapping) or "img_fn" not in content:
        keys = ", ".join(map(str, content)) if isinstance(content, Mapping) else "not a dictionary"
        raise DataError(f"{file}: the annotations lack img_fn; found {keys}")
    names = [str(name) for name in content["img_fn"]]
    if "sequence_name" in content:
        folders = [str(name) for name in content["sequence_name"]]
        names = [
            name if "/" in name else f"{folder}/{name}"
            for folder, name in zip(folders, names, strict=True)
        ]
    columns: dict[str, NDArray[Any]] = {"image_path": np.array(names)}
    if "center" in content and "scale" in content:
        centre, side = _rows(content["center"], 2), _rows(content["scale"], -1)[:, :1]
        ones = np.ones_like(side)
        columns["bbox_xywh"] = np.concatenate([centre - side / 2, side, side, ones], axis=1)
    if "focal_length" in content:
        columns["focal_length"] = _rows(content["focal_length"], -1)
    if "pelvis_camcoord" in content:
        columns["pelvis"] = _rows(content["pelvis_camcoord"], 3)
    parameters = content.get("smplx", content)
    for name, shape in SMPLX_SHAPES.items():
        if name in parameters:
            rows = _rows(parameters[name], -1)
            columns[f"smplx/{name}"] = rows.reshape(len(rows), *shape)
    data = HumanData(file, columns)
    if "pelvis" not in data and "smplx/transl" not in data:
        raise DataError(
            f"{file}: there is neither pelvis_camcoord nor smplx with transl, so the depth is "
            f"unknown; found {', '.join(map(str, content))}"
        )
    return data


def _rows(value: Any, width: int) -> NDArray[np.float32]:
    """Return rows (N, width) of a tensor, an array or a list of either."""
    if isinstance(value, list | tuple):
        array = np.stack([np.asarray(row, dtype=np.float32) for row in value])
    else:
        array = np.asarray(value, dtype=np.float32)
    return array.reshape(len(array), width)
