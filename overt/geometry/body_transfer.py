"""Vertices of one body model from those of another, such as SMPL's from SMPL-X's.

The published files (`smplx2smpl_deftrafo_setup.pkl`) hold a sparse matrix: each vertex of the
target is a mean of a few of the source. They are read as data, nothing of them is run. Letters:
V vertices of the source, T of the target, K entries of a row.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from overt.errors import DataError
from overt.files.atomic import new_file
from overt.files.bounds import open_arrays
from overt.geometry.smpl_pickle import Entries, entries_of, read_smpl_pickle

WITH_NORMALS, PLAIN = "mtx", "matrix"  # keys of the published files
MOST_ENTRIES = 64  # of a row: a mean of more vertices than that is not a transfer of a surface
MOST_VERTICES = 10**6  # a file of a few bytes can claim any size
MAKE = "overt data body-transfer smplx2smpl_deftrafo_setup.pkl OUT.npz"


class Transfer(NamedTuple):
    """Rows of a sparse matrix, all filled up to the same length with zeros."""

    corners: NDArray[np.int64]  # (T, K) vertices of the source
    weight: NDArray[np.float32]  # (T, K)
    sources: int  # V


class VertexTransfer(nn.Module):
    """Applies a transfer; nothing of it is trained or saved."""

    corners: Tensor
    weight: Tensor

    def __init__(self, transfer: Transfer) -> None:
        super().__init__()
        self.sources = transfer.sources
        self.register_buffer("corners", torch.from_numpy(transfer.corners), persistent=False)
        self.register_buffer("weight", torch.from_numpy(transfer.weight), persistent=False)

    def forward(self, vertices: Tensor) -> Tensor:  # (..., V, 3) to (..., T, 3)
        gathered = vertices.index_select(-2, self.corners.flatten())
        gathered = torch.unflatten(gathered, -2, self.corners.shape)  # (..., T, K, 3)
        return (gathered * self.weight[..., None]).sum(-2)


def load_transfer(name: str, key: str, sources: int, targets: int) -> Transfer:
    """Read the transfer that the setting `key` names, for these numbers of vertices."""
    path, title = Path(name), f"{key}={name}"
    if not path.is_file():
        raise DataError(f"{title}: the file does not exist; make it by `{MAKE}`")
    transfer = _of_entries(_read(path, title), title)
    sizes = (len(transfer.corners), transfer.sources)
    if sizes != (targets, sources):
        raise DataError(
            f"{title}: takes {sizes[1]} vertices to {sizes[0]}, expected {sources} to {targets}; "
            "SMPL has 6890 and SMPL-X 10475, and a file serves one direction"
        )
    return transfer


def convert_transfer(source: Path, out: Path) -> Transfer:
    """Write a published transfer as a small .npz of arrays (scipy.sparse.load_npz reads it too)."""
    if out.suffix != ".npz":
        raise DataError(f"{out}: a transfer is written as .npz; use that suffix")
    if not source.is_file():
        raise DataError(
            f"{source}: no such file; smpl-x.is.tue.mpg.de has it under Downloads, in the "
            "archive for the conversion of SMPL, SMPL+H and SMPL-X"
        )
    transfer = _of_entries(_read(source, str(source)), str(source))
    used = transfer.weight != 0
    with new_file(out) as hidden, hidden.open("wb") as file:
        np.savez_compressed(
            file,
            data=transfer.weight[used],
            indices=transfer.corners[used].astype(np.int32),
            indptr=np.concatenate([[0], used.sum(1).cumsum()]).astype(np.int32),
            shape=np.array([len(transfer.corners), transfer.sources]),
            format=np.array(b"csr"),
        )
    return transfer


def _read(path: Path, title: str) -> Entries:
    if path.suffix == ".pkl":
        content = read_smpl_pickle(path, title)
        for name in (WITH_NORMALS, PLAIN):
            if name in content:
                try:
                    entries = entries_of(content[name])
                # A damaged entry stops with almost any exception: KeyError, TypeError, ...
                except Exception as error:
                    raise DataError(
                        f"{title}: {name} is not a readable matrix ({type(error).__name__}: "
                        f"{error}); get the file again"
                    ) from error
                return _without_normals(entries) if name == WITH_NORMALS else entries
        names = ", ".join(map(str, content))
        raise DataError(f"{title}: holds {names}, but a transfer has mtx or matrix")
    try:
        content = open_arrays(path)
        if isinstance(content, np.ndarray):
            return entries_of(content)
        with content:
            values, index, ends = (content[name] for name in ("data", "indices", "indptr"))
            rows, columns = content["shape"].tolist()
    # A damaged archive stops with almost any exception: zlib.error, BadZipFile, KeyError, ...
    except Exception as error:
        problem = f"not a readable transfer ({type(error).__name__}: {error})"
        raise DataError(f"{title}: {problem}; make it by `{MAKE}`") from error
    is_consistent = len(ends) == rows + 1 and bool((np.diff(ends) >= 0).all()) and ends[0] == 0
    if not is_consistent or not len(index) == len(values) == ends[-1]:
        raise DataError(f"{title}: a damaged transfer; make it again by `{MAKE}`")
    lines = np.repeat(np.arange(rows), np.diff(ends))
    return Entries(lines, index.astype(np.int64), values, (rows, columns))


def _without_normals(entries: Entries) -> Entries:
    """Keep the first half of the columns: the second multiplies normals."""
    half = entries.shape[1] // 2
    keep = entries.columns < half
    rows, columns, values = (part[keep] for part in entries[:3])
    return Entries(rows, columns, values, (entries.shape[0], half))


def _of_entries(entries: Entries, title: str) -> Transfer:
    rows, columns = entries.shape
    used = entries.values != 0
    line, index, values = (part[used] for part in entries[:3])
    if not 0 < rows <= MOST_VERTICES:
        raise DataError(f"{title}: a transfer to {rows} vertices; SMPL has 6890, SMPL-X 10475")
    inside = len(index) > 0 and 0 <= index.min() <= index.max() < columns
    if not inside or not np.isfinite(values).all():
        raise DataError(f"{title}: a transfer with missing or invalid values; get the file again")
    counts = np.bincount(line, minlength=rows)
    width = int(counts.max())
    if width > MOST_ENTRIES:
        raise DataError(
            f"{title}: a vertex is made of {width} others; a transfer between bodies takes a few "
            f"of each (at most {MOST_ENTRIES}). Is it a joint regressor?"
        )
    order = np.argsort(line, kind="stable")
    line, index, values = line[order], index[order], values[order]
    column = np.arange(len(line)) - np.repeat(counts.cumsum() - counts, counts)
    padded = np.zeros((rows, width), np.int64)
    weight = np.zeros((rows, width), np.float32)
    padded[line, column], weight[line, column] = index, values
    return Transfer(padded, weight, columns)
