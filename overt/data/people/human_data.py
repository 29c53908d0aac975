"""HumanData annotations (.npz of MMHuman3D): columns with one row per person, read lazily.

Pickled parts, including tensors, are read as data and never executed. Numeric columns can be cached
as .npy files next to the annotations, shared by all workers.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError
from overt.files.atomic import new_file
from overt.files.bounds import check_arrays
from overt.files.pickles import load_pickle

Array = NDArray[Any]

# Shapes, per row, of the pose and shape parameters when written; any shape is accepted when read,
# and more shape coefficients.
SMPLX_SHAPES: dict[str, tuple[int, ...]] = {
    "global_orient": (3,),
    "body_pose": (21, 3),
    "betas": (10,),
    "transl": (3,),
    "left_hand_pose": (15, 3),
    "right_hand_pose": (15, 3),
}
SMPL_SHAPES: dict[str, tuple[int, ...]] = {
    "global_orient": (3,),
    "body_pose": (23, 3),
    "betas": (10,),
    "transl": (3,),
}
GROUPS = {"smplx": SMPLX_SHAPES, "smpl": SMPL_SHAPES}
PLAIN = (
    "image_path", "bbox_xywh", "keypoints2d", "K", "focal_length", "distortion_max", "has_smpl",
    "pelvis",
)  # fmt: skip
# Stored once for the whole file.
SINGLE = (
    "keypoints2d_mask", "keypoints2d_convention", "__keypoints_compressed__", "overt_body",
)  # fmt: skip
CACHE_SUFFIX = ".columns"
CACHE_VERSION = 1  # raise it when columns are read in another way: older caches are made again


@dataclass(frozen=True)
class Header:
    """What a file stores once, not for each row."""

    # points of the file's convention, the columns of it that `keypoints2d` holds, and its name
    # where the file gives one
    width: int = 0
    kept: tuple[int, ...] = ()
    convention: str | None = None
    # the body of rendered people, such as capsule; None: real ones
    body: str | None = None


@dataclass(frozen=True)
class HumanData:
    """The columns of an annotation file by name; parameters are `smplx/body_pose` and so on."""

    path: Path
    columns: Mapping[str, Array]
    header: Header = Header()

    def __len__(self) -> int:
        return len(self.columns["image_path"])

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def has(self, group: str) -> bool:
        """Return whether there are parameters of a body model."""
        return f"{group}/body_pose" in self.columns

    @classmethod
    def load(
        cls,
        path: str | Path,
        required: Sequence[str] = ("image_path",),
        cache: bool = False,
    ) -> HumanData:
        """Open the annotations of a file; `required` columns must exist."""
        file = Path(path)
        if not file.is_file():
            raise DataError(
                f"{file}: no such annotation file; set data.root (or evaluation.dataset_root) to "
                "the folder that holds the data sets, or the source's annotations to the file"
            )
        try:
            columns, header = _cached(file) if cache else read_columns(file)
        except DataError:
            raise
        except Exception as error:  # a damaged file stops zipfile and numpy with almost any
            raise DataError(
                f"{file}: not readable as annotations ({type(error).__name__}: {error}). The file "
                "is damaged or of another kind; get it again."
            ) from error
        single = [name for name, column in columns.items() if column.ndim == 0]
        if single:
            raise DataError(f"{file}: {', '.join(single)} has one value, not one for each person")
        if "K" in columns:
            columns["K"] = _matrices(columns["K"], file)
        if "focal_length" in columns and 0 in columns["focal_length"].shape[1:]:
            shape = columns["focal_length"].shape
            raise DataError(f"{file}: focal_length has shape {shape}; expected (N, 1) pixels")
        data = cls(file, columns, header)
        data.require(required)
        data.check_rows()
        return data

    def check_rows(self) -> None:
        """Reject columns of different lengths, and a file without rows."""
        counts = {name: len(column) for name, column in self.columns.items()}
        if len(set(counts.values())) > 1:
            raise DataError(f"{self.path}: its columns have different numbers of rows: {counts}")
        if len(self) == 0:
            raise DataError(f"{self.path}: it has no rows")

    def require(self, names: Sequence[str]) -> None:
        """Raise an error that names missing and available columns."""
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise DataError(
                f"{self.path}: the annotations lack {', '.join(missing)}; found "
                f"{', '.join(sorted(self.columns))}. Make the file again with these keys, or use "
                "another."
            )

    def chosen(self, rows: NDArray[np.integer]) -> HumanData:
        """Return the same columns with only these rows."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return HumanData(self.path, columns, self.header)

    def focal(
        self, row: int, image_size: tuple[int, int]
    ) -> tuple[float, tuple[float, float]] | None:
        """Return focal length and principal point in pixels; the image center without K."""
        if "K" in self.columns:
            matrix = self.columns["K"][row]
            return float(matrix[0, 0]), (float(matrix[0, 2]), float(matrix[1, 2]))
        if "focal_length" not in self.columns:
            return None
        height, width = image_size
        focal = float(np.ravel(self.columns["focal_length"][row])[0])
        return focal, (width / 2, height / 2)


def bad_boxes(data: HumanData) -> NDArray[np.int64]:
    """Return rows whose box is empty, not finite, or below a pixel: a fraction of the picture."""
    boxes = data.columns["bbox_xywh"]
    good = np.isfinite(boxes[:, :4]).all(1) & (boxes[:, 2] > 0) & (boxes[:, 3] > 0)
    good &= boxes[:, 2:4].max(1) >= 1
    return np.nonzero(~good)[0]


def rows_without_extent(data: HumanData) -> NDArray[np.int64]:
    """Return rows whose visible keypoints are fewer than two, or all at one position."""
    points = data.columns["keypoints2d"]
    positions_xy, is_visible = points[..., :2], points[..., 2:] > 0
    low = positions_xy.min(1, where=is_visible, initial=np.inf)
    high = positions_xy.max(1, where=is_visible, initial=-np.inf)
    return np.nonzero(~(high > low).any(1))[0]


def non_finite_rows(data: HumanData, name: str) -> NDArray[np.int64]:
    """Return rows that hold NaN or Inf in a column."""
    values = data.columns[name].reshape(len(data), -1)
    return np.nonzero(~np.isfinite(values).all(1))[0]


def labeled_rows(data: HumanData) -> NDArray[np.bool_]:
    """Return whether each row has a label (N,): all of them unless the file has `has_smpl`."""
    if "has_smpl" not in data:
        return np.ones(len(data), dtype=bool)
    return np.asarray(np.ravel(data.columns["has_smpl"]) > 0)


def _matrices(matrices: Array, path: Path) -> Array:
    """Return K as (N, 3, 3), which may be stored flat."""
    if matrices.shape[1:] not in ((3, 3), (9,)):
        raise DataError(
            f"{path}: K has shape {matrices.shape}; expected camera matrices, (N, 3, 3) or (N, 9)"
        )
    return matrices.reshape(len(matrices), 3, 3)


def read_columns(path: Path) -> tuple[dict[str, Array], Header]:
    """Read all columns of an annotation file into memory, and what it stores once."""
    try:
        check_arrays(path)
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy"): name for name in archive.namelist()}
            columns_read = [name for name in (*PLAIN, *GROUPS, *SINGLE) if name in names]
            if not columns_read and any(name.endswith("/data.pkl") for name in names):
                raise DataError(
                    f"{path}: looks like a file of torch.save, not an .npz file; BEDLAM-CC's "
                    "files, which are such, need layout=bedlamcc"
                )
            raw = {name: _member(archive, names[name], path) for name in columns_read}
    except zipfile.BadZipFile as error:
        raise DataError(
            f"{path}: not a readable .npz file ({error}); get it again. BEDLAM-CC's files, which "
            "are named so, need layout=bedlamcc"
        ) from None
    single = {name: raw.pop(name) for name in SINGLE if name in raw}
    columns: dict[str, Array] = {}
    for name, value in raw.items():
        if name in GROUPS:
            columns |= _parameters(path, name, value)
        elif name == "image_path":
            columns[name] = np.asarray(value).astype(str)
        else:
            columns[name] = np.asarray(value, dtype=np.float32)
    for name, least in {"bbox_xywh": 4, "pelvis": 3}.items():
        shape = columns[name].shape if name in columns else (0, least)
        if len(shape) != 2 or shape[1] < least:
            raise DataError(f"{path}: {name} has shape {shape}; expected (N, {least})")
    boxes = columns.get("bbox_xywh")
    if boxes is not None and boxes.shape[1] == 4:  # without a score: certain
        columns["bbox_xywh"] = np.concatenate([boxes, np.ones_like(boxes[:, :1])], axis=1)
    return columns, _header(path, columns, single)


def _header(path: Path, columns: dict[str, Array], single: Mapping[str, Any]) -> Header:
    """Drop keypoints that the file's mask marks as absent; return the remaining columns."""
    body, convention = single.get("overt_body"), single.get("keypoints2d_convention")
    words = [None if word is None else str(word) for word in (convention, body)]
    points = columns.get("keypoints2d")
    if points is None:
        return Header(0, (), *words)
    if points.ndim != 3 or points.shape[2] not in (2, 3):
        raise DataError(
            f"{path}: keypoints2d has shape {points.shape}; expected x, y and confidence of "
            "each point of each person, (N, J, 3)"
        )
    if points.shape[2] == 2:  # without a confidence: certain
        columns["keypoints2d"] = points = np.concatenate(
            [points, np.ones_like(points[..., :1])], axis=2
        )
    is_known = np.isfinite(points).all(2, keepdims=True)
    if not is_known.all():  # NaN stands for a point that was not labeled
        columns["keypoints2d"] = points = np.where(is_known, points, np.float32(0))
    stored, mask = points.shape[1], single.get("keypoints2d_mask")
    if mask is None:
        if single.get("__keypoints_compressed__"):
            raise DataError(
                f"{path}: its key points are compressed, without a keypoints2d_mask that "
                "tells which ones they are; write it again, decompressed"
            )
        return Header(stored, tuple(range(stored)), *words)
    kept = np.nonzero(np.ravel(mask))[0]
    if not single.get("__keypoints_compressed__"):
        if len(np.ravel(mask)) != stored:
            raise DataError(
                f"{path}: keypoints2d has {stored} points, keypoints2d_mask {len(np.ravel(mask))}"
            )
        columns["keypoints2d"] = np.ascontiguousarray(points[:, kept])
    elif len(kept) != stored:
        raise DataError(
            f"{path}: {stored} compressed key points, but keypoints2d_mask has {len(kept)} ones"
        )
    return Header(len(np.ravel(mask)), tuple(kept.tolist()), *words)


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> Any:
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        _, _, dtype = read(file)
        if dtype == np.dtype(object):
            array = load_pickle(file, f"{path}, key {name.removesuffix('.npy')}")
            return array.item() if isinstance(array, np.ndarray) and array.ndim == 0 else array
    with archive.open(name) as file:
        full_array = np.lib.format.read_array(file, allow_pickle=False)
    if full_array.dtype.kind == "c":  # one flipped bit in a file: half of each number would be lost
        raise DataError(f"{path}: {name.removesuffix('.npy')} has complex numbers. Copy it again.")
    return full_array.item() if full_array.ndim == 0 else full_array


def _parameters(path: Path, group: str, value: Any) -> dict[str, Array]:
    if not isinstance(value, Mapping):
        raise DataError(f"{path}: {group} is a {type(value).__name__}, expected a dict of arrays")
    columns = {}
    for name, shape in GROUPS[group].items():
        # Bodies are the neutral ones: if shapes are given for these too, they are used.
        stored = f"{name}_neutral" if f"{name}_neutral" in value else name
        if stored in value:
            try:
                rows = _stack(value[stored])
            except (ValueError, TypeError) as error:  # text, one number, rows of different lengths
                raise DataError(
                    f"{path}: {group}/{name} is not usable ({error}); expected {('N', *shape)}"
                ) from None
            try:
                columns[f"{group}/{name}"] = reshaped(rows, name, shape)
            except ValueError:
                more = " or more coefficients" if name == "betas" else ""
                raise DataError(
                    f"{path}: {group}/{name} has shape {rows.shape}; expected {('N', *shape)}{more}"
                ) from None
    return columns


def reshaped(rows: Array, name: str, shape: tuple[int, ...]) -> Array:
    """Return parameters (N, *shape); of the shape as many coefficients as any row uses.

    Raises a ValueError where they do not fit.
    """
    if name != "betas" or not len(rows):
        return rows.reshape(len(rows), *shape)
    wide, least = rows.reshape(len(rows), -1), shape[0]
    if wide.shape[1] < least:
        raise ValueError(f"{wide.shape[1]} shape coefficients, expected {least} or more")
    used = np.nonzero(wide[:, least:].any(0))[0]  # many files are padded with zeros
    return wide[:, : least + int(used.max(initial=-1)) + 1]


def require_directions(data: HumanData, group: str, available: int, body: str) -> None:
    """Reject labels with more shape coefficients than their body has directions."""
    count = data.columns[f"{group}/betas"].shape[1]
    if count > available:
        raise DataError(
            f"{data.path}: {group}/betas has {count} shape coefficients, but {body} has "
            f"{available}; name the body model file with 300 of them, or shorten the labels"
        )


def _stack(rows: Any) -> NDArray[np.float32]:
    """Return rows as an array, from an array or a list of arrays or tensors (1, ...)."""
    if isinstance(rows, np.ndarray) and rows.dtype != object:
        return rows.astype(np.float32)
    return np.stack([np.asarray(row, dtype=np.float32) for row in rows])


# --- writing and caching -------------------------------------------------------------------------


def write_human_data(path: Path, columns: Mapping[str, Array], **single: Any) -> None:
    """Write columns as one file; parameter columns go into dicts of float32 arrays.

    `single` values are stored once for the whole file: see `SINGLE`.
    """
    content: dict[str, Any] = {name: column for name, column in columns.items() if "/" not in name}
    for group in GROUPS:
        inside = {
            name.partition("/")[2]: np.asarray(column, np.float32)
            for name, column in columns.items()
            if name.startswith(group + "/")
        }
        if inside:
            content[group] = np.array(inside, dtype=object)
    content |= {name: np.array(word) for name, word in single.items()}
    content["__data_len__"] = np.int64(len(columns["image_path"]))
    content["__key_strict__"] = np.bool_(False)
    with new_file(path) as hidden, hidden.open("wb") as file:
        np.savez_compressed(file, **content)


def _cached(path: Path) -> tuple[dict[str, Array], Header]:
    """Return columns as memory maps of .npy files next to the annotations, written on first use."""
    folder = path.with_name(path.name + CACHE_SUFFIX)
    stat = path.stat()
    mark = {"version": CACHE_VERSION, "size": stat.st_size, "modified": stat.st_mtime_ns}
    cached = _open_cache(folder, mark)
    if cached is not None:
        return cached
    columns, header = read_columns(path)
    try:
        temporary = Path(tempfile.mkdtemp(prefix=folder.name, dir=folder.parent))
    except OSError:  # a folder that nobody may write to: everything stays in memory
        return columns, header
    for name, column in columns.items():
        np.save(temporary / f"{name.replace('/', '.')}.npy", column)
    index = {"columns": list(columns), "header": asdict(header)}
    (temporary / "index.json").write_text(json.dumps(mark | index))
    try:
        os.rename(temporary, folder)
    except OSError:  # an older one, or another process was faster
        if _open_cache(folder, mark) is None:
            shutil.rmtree(folder, ignore_errors=True)
            _rename_or_drop(temporary, folder)
        else:
            shutil.rmtree(temporary, ignore_errors=True)
    return _open_cache(folder, mark) or (columns, header)


def _rename_or_drop(temporary: Path, folder: Path) -> None:
    try:
        os.rename(temporary, folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)


def _open_cache(folder: Path, mark: Mapping[str, int]) -> tuple[dict[str, Array], Header] | None:
    try:
        index = json.loads((folder / "index.json").read_text())
        if any(index[name] != value for name, value in mark.items()):
            return None
        once = index["header"]
        header = Header(**once | {"kept": tuple(once["kept"])})
        return _maps(folder, index["columns"]), header
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _maps(folder: Path, names: Iterable[str]) -> dict[str, Array]:
    return {
        name: np.load(folder / f"{name.replace('/', '.')}.npy", mmap_mode="r") for name in names
    }
