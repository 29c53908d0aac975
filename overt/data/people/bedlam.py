"""BEDLAM-CC annotations: a dictionary of torch.save named .npz, in either of its two forms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.data.people.human_data import SMPLX_SHAPES, HumanData, reshaped
from overt.errors import DataError
from overt.files.pickles import safe_globals

PICTURES = "png"  # the published folder of the pictures, below that of the data set


def read_bedlam(path: str | Path, images: Path | None = None) -> HumanData:
    """Return its rows as HumanData columns, with `pelvis_camcoord` or with `smplx`.

    `images` is the folder of the data set: if it has a folder `png`, pictures are found there by
    the last two parts of their names, SEQUENCE/FILE.
    """
    file = Path(path)
    content = _load(file)
    names = _picture_names(content, file)
    if images is not None and (images / PICTURES).is_dir():
        names = ["/".join([PICTURES, *name.split("/")[-2:]]) for name in names]
    columns: dict[str, NDArray[Any]] = {"image_path": np.array(names, dtype=str)}
    if "center" in content and "scale" in content:
        centre = _rows(content, "center", file, (2,))
        side = _rows(content, "scale", file)[:, :1]
        _same_length({"center": centre, "scale": side}, file)
        ones = np.ones_like(side)
        columns["bbox_xywh"] = np.concatenate([centre - side / 2, side, side, ones], axis=1)
    if "focal_length" in content:
        columns["focal_length"] = _rows(content, "focal_length", file)
    if "pelvis_camcoord" in content:
        columns["pelvis"] = _rows(content, "pelvis_camcoord", file, (3,))
    parameters = content.get("smplx", content)
    if not isinstance(parameters, Mapping):
        raise DataError(
            f"{file}: smplx is a {type(parameters).__name__}; expected a dictionary with "
            f"{', '.join(SMPLX_SHAPES)}"
        )
    for name, shape in SMPLX_SHAPES.items():
        if name in parameters:
            columns[f"smplx/{name}"] = _rows(parameters, name, file, shape)
    data = HumanData(file, columns)
    data.check_rows()
    if "pelvis" not in data and "smplx/transl" not in data:
        raise DataError(
            f"{file}: there is neither pelvis_camcoord nor smplx with transl, so the depth is "
            f"unknown; found {', '.join(map(str, content))}"
        )
    return data


def _load(file: Path) -> Mapping[str, Any]:
    import torch

    if not file.is_file():
        raise DataError(
            f"{file}: no such annotation file; set data.root (or evaluation.dataset_root) to the "
            "folder that holds the data sets, or the source's annotations to the file"
        )
    try:
        with torch.serialization.safe_globals([*safe_globals()]):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # junk stops the unpickler with almost any, such as KeyError
        text = str(error) or type(error).__name__
        named = re.search(r"GLOBAL ([\w.]+)", text)
        # Without torch's advice to switch its safety off.
        text = text.partition("WeightsUnpickler error:")[2].strip() or text
        reason = f"it asks for {named[1]}" if named else text.splitlines()[0]
        raise DataError(
            f"{file}: not a dictionary of torch.save with plain values ({reason}); nothing of it "
            "was run. For .npz files of MMHuman3D use layout=humandata."
        ) from None
    if not isinstance(content, Mapping) or "img_fn" not in content:
        keys = ", ".join(map(str, content)) if isinstance(content, Mapping) else "not a dictionary"
        raise DataError(f"{file}: the annotations lack img_fn; found {keys}")
    return content


def _picture_names(content: Mapping[str, Any], file: Path) -> list[str]:
    """Return paths of the pictures, below the folder of their sequence where that is given."""
    names = [name.replace("\\", "/") for name in _words(content, "img_fn", file)]  # of Windows
    if not names:
        raise DataError(f"{file}: it has no rows: img_fn is empty")
    if "sequence_name" in content:
        folders = _words(content, "sequence_name", file)
        _same_length({"img_fn": names, "sequence_name": folders}, file)
        names = [
            name if "/" in name else f"{folder}/{name}"
            for folder, name in zip(folders, names, strict=True)
        ]
    return names


def _words(content: Mapping[str, Any], name: str, file: Path) -> list[str]:
    value = content[name]
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise DataError(f"{file}: {name} is a {type(value).__name__}; expected a list of names")
    return [str(word) for word in value]


def _same_length(columns: Mapping[str, Any], file: Path) -> None:
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) > 1:
        raise DataError(f"{file}: its columns have different numbers of rows: {counts}")


def _rows(
    content: Mapping[str, Any], name: str, file: Path, shape: tuple[int, ...] = (-1,)
) -> NDArray[np.float32]:
    """Return rows (N, *shape) of a tensor, an array or a list of either; -1: any length."""
    value = content[name]
    try:
        if isinstance(value, list | tuple):
            array = np.stack([_numbers(row) for row in value])
        else:
            array = _numbers(value)
        return reshaped(array, name, shape)
    # Text, a single number, rows of different or of the wrong length.
    except (ValueError, TypeError, RuntimeError) as error:
        expected = "numbers for each person" if shape == (-1,) else str(("N", *shape))
        raise DataError(f"{file}: {name} is not usable ({error}); expected {expected}") from None


def _numbers(value: Any) -> NDArray[np.float32]:
    """Return a tensor, which may have a gradient or a type that numpy lacks, or an array."""
    import torch

    plain = value.detach().float() if isinstance(value, torch.Tensor) else value
    return np.asarray(plain, dtype=np.float32)
