"""SMPL's published .pkl files as arrays: what chumpy and scipy left in them, without either.

Their classes are stood for by ones of this file that only hold state; nothing of a file is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError
from overt.files.pickles import PickledState, load_pickle

# A matrix of a few bytes can claim any size. Far above SMPL-X's 55 joints from 10475 vertices.
LARGEST_MATRIX = 10**8


class _Number(PickledState):
    """A chumpy.ch.Ch: an array to differentiate by."""

    def array(self) -> NDArray[Any]:
        return array_of(self.state["x"])


class _Select(PickledState):
    """A chumpy.reordering.Select: some numbers of another array, such as its first ten columns."""

    def array(self) -> NDArray[Any]:
        numbers = np.take(array_of(self.state["a"]), array_of(self.state["idxs"]))
        return np.reshape(numbers, self.state.get("preferred_shape", numbers.shape))


class _SparseColumns(PickledState):
    """A csc_matrix of scipy."""

    def array(self) -> NDArray[Any]:
        rows, columns = self.state["_shape"]
        return _dense(self.state, columns, rows).T


class _SparseRows(PickledState):
    """A csr_matrix of scipy."""

    def array(self) -> NDArray[Any]:
        rows, columns = self.state["_shape"]
        return _dense(self.state, rows, columns)


def _dense(state: Mapping[str, Any], lines: int, length: int) -> NDArray[Any]:
    """The compressed lines (lines, length) of a sparse matrix, with zeros in between."""
    data, places = array_of(state["data"]), array_of(state["indices"])
    ends = array_of(state["indptr"]).astype(np.int64)
    if not 0 < lines * length <= LARGEST_MATRIX:
        raise ValueError(f"a matrix of {lines} x {length}")
    counts = np.diff(ends)
    ordered = len(ends) == lines + 1 and ends[0] == 0 and counts.min() >= 0
    if not ordered or ends[-1] > len(data) or places.min(initial=0) < 0:
        raise ValueError("a sparse matrix with a layout that scipy does not write")
    line = np.repeat(np.arange(lines), counts)
    dense = np.zeros((lines, length), dtype=data.dtype)
    # Entries at the same place add up; those behind the last end are room to grow.
    np.add.at(dense, (line, places[: ends[-1]]), data[: ends[-1]])
    return dense


STAND_INS: dict[tuple[str, str], type[PickledState]] = {
    ("chumpy.ch", "Ch"): _Number,
    ("chumpy.reordering", "Select"): _Select,
}
for _package in ("scipy.sparse.", "scipy.sparse._"):  # before scipy 1.8, and since
    STAND_INS[f"{_package}csc", "csc_matrix"] = _SparseColumns
    STAND_INS[f"{_package}csr", "csr_matrix"] = _SparseRows


def read_smpl_pickle(path: Path, name: str) -> dict[Any, Any]:
    """The contents of a .pkl file by key, for `array_of`; `name` is how refusals call the file."""
    with path.open("rb") as file:
        content = load_pickle(file, name, STAND_INS)
    if not isinstance(content, dict):
        raise DataError(f"{name}: holds a {type(content).__name__}, but a body model is a dict")
    return content


def array_of(value: object) -> NDArray[Any]:
    """The numbers of an entry: of an array itself, or of what chumpy or scipy wrote for one."""
    if isinstance(value, _Number | _Select | _SparseColumns | _SparseRows):
        return value.array()
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
        raise ValueError(f"{type(value).__name__} in place of an array of numbers")
    return value
