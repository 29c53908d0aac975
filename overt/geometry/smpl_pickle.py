"""SMPL's published .pkl files as arrays: what chumpy and scipy left in them, without either.

Their classes are stood for by ones of this file that only hold state; nothing of a file is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

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


class Entries(NamedTuple):
    """What a sparse matrix stores; entries of the same row and column add up."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[Any]
    shape: tuple[int, int]

    def dense(self) -> NDArray[Any]:
        """The matrix with its zeros."""
        if not 0 < self.shape[0] * self.shape[1] <= LARGEST_MATRIX:
            raise ValueError(f"a matrix of {self.shape[0]} x {self.shape[1]}")
        dense = np.zeros(self.shape, dtype=self.values.dtype)
        np.add.at(dense, (self.rows, self.columns), self.values)
        return dense


class _SparseColumns(PickledState):
    """A csc_matrix of scipy."""

    def entries(self) -> Entries:
        rows, columns = self.state["_shape"]
        line, index, values = _compressed(self.state, columns, rows)
        return Entries(index, line, values, (rows, columns))

    def array(self) -> NDArray[Any]:
        return self.entries().dense()


class _SparseRows(PickledState):
    """A csr_matrix of scipy."""

    def entries(self) -> Entries:
        rows, columns = self.state["_shape"]
        return Entries(*_compressed(self.state, rows, columns), (rows, columns))

    def array(self) -> NDArray[Any]:
        return self.entries().dense()


class _SparseList(PickledState):
    """A coo_matrix of scipy: row and column of each entry, in two arrays or in one pair."""

    def entries(self) -> Entries:
        rows, columns = self.state["_shape"]
        pair = self.state.get("coords") or (self.state["row"], self.state["col"])
        row, column = (array_of(part).astype(np.int64) for part in pair)
        values = array_of(self.state["data"])
        if not len(row) == len(column) == len(values):
            raise ValueError("a sparse matrix with a layout that scipy does not write")
        _check_within(row, rows)
        _check_within(column, columns)
        return Entries(row, column, values, (rows, columns))

    def array(self) -> NDArray[Any]:
        return self.entries().dense()


def _compressed(
    state: Mapping[str, Any], lines: int, length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
    """Line, place in the line and value of each entry of compressed lines (lines, length)."""
    data, index = array_of(state["data"]), array_of(state["indices"]).astype(np.int64)
    ends = array_of(state["indptr"]).astype(np.int64)
    if not (0 < lines <= LARGEST_MATRIX and 0 < length <= LARGEST_MATRIX):
        raise ValueError(f"a matrix of {lines} x {length}")
    counts = np.diff(ends)
    ordered = len(ends) == lines + 1 and ends[0] == 0 and counts.min() >= 0
    if not ordered or ends[-1] > min(len(data), len(index)):
        raise ValueError("a sparse matrix with a layout that scipy does not write")
    line = np.repeat(np.arange(lines), counts)
    # Entries behind the last end are room to grow.
    index, data = index[: ends[-1]], data[: ends[-1]]
    _check_within(index, length)
    return line, index, data


def _check_within(index: NDArray[np.int64], limit: int) -> None:
    if index.min(initial=0) < 0:
        raise ValueError("a sparse matrix with a layout that scipy does not write")
    if index.max(initial=0) >= limit:
        raise IndexError(f"a sparse matrix with an entry outside of its {limit} lines")


STAND_INS: dict[tuple[str, str], type[PickledState]] = {
    ("chumpy.ch", "Ch"): _Number,
    ("chumpy.reordering", "Select"): _Select,
}
for _package in ("scipy.sparse.", "scipy.sparse._"):  # before scipy 1.8, and since
    STAND_INS[f"{_package}csc", "csc_matrix"] = _SparseColumns
    STAND_INS[f"{_package}csr", "csr_matrix"] = _SparseRows
    STAND_INS[f"{_package}coo", "coo_matrix"] = _SparseList


def read_smpl_pickle(path: Path, name: str) -> dict[Any, Any]:
    """The contents of a .pkl file by key, for `array_of`; `name` is how refusals call the file."""
    with path.open("rb") as file:
        content = load_pickle(file, name, STAND_INS)
    if not isinstance(content, dict):
        kind = "one matrix" if isinstance(content, PickledState) else type(content).__name__
        raise DataError(f"{name}: expected a dict of arrays, got {kind}.")
    return content


def array_of(value: object) -> NDArray[Any]:
    """The numbers of an entry: of an array itself, or of what chumpy or scipy wrote for one."""
    if isinstance(value, _Number | _Select | _SparseColumns | _SparseRows | _SparseList):
        return value.array()
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
        raise ValueError(f"{type(value).__name__} in place of an array of numbers")
    return value


def entries_of(value: object) -> Entries:
    """What an entry stores of a matrix that may be too large to be written out with its zeros."""
    if isinstance(value, _SparseColumns | _SparseRows | _SparseList):
        return value.entries()
    matrix = array_of(value)
    if matrix.ndim != 2:
        raise ValueError(f"an array of shape {matrix.shape} in place of a matrix")
    rows, columns = np.nonzero(matrix)
    return Entries(rows, columns, matrix[rows, columns], (matrix.shape[0], matrix.shape[1]))
