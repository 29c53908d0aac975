"""For each row, the terms that read it: made once for an index, used by all sums along it.

Letters: R rows, O results, K terms of a result. The transpose of a sum of rows adds to rows; with
lists each row collects its own sum instead, and no two programs write to the same memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from overt.ops.dispatch import use_kernels


class RowLists(NamedTuple):
    """The terms o * K + k of each row, in ascending order."""

    starts: Tensor  # (R + 1,) int32: where the terms of a row begin
    terms: Tensor  # (O * K,) int32; before the first row's terms are those of no row
    # Cells along a side, where the terms of a result are the corners of a cube and only its lowest
    # is listed: a row then collects from its own list and those of the 7 cells below it.
    side: int = 0


def list_terms(
    index: Tensor,  # (O, K) int32; a negative term is in no list
    count: int,
) -> RowLists | None:
    """The lists of `count` rows, for `mix_rows` and `spread_rows`; None where nothing reads them.

    The host never waits, and shapes depend on those of the index alone.
    """
    serves = use_kernels("point_rows", index, dtype=torch.float32)
    return sort_terms(index, count) if serves else None


def sort_terms(index: Tensor, count: int) -> RowLists:
    """Sort the terms by row. In a fixed order they have the same sum every time."""
    rows, terms = index.flatten().sort(stable=True)
    each = torch.arange(count + 1, dtype=torch.int32, device=index.device)
    return RowLists(torch.searchsorted(rows, each, out_int32=True), terms.int())


def list_lowest_corners(
    corners: Tensor,  # (O, 8) int32: bits x, y, z; one of weight 0 may lie elsewhere
    count: int,
    side: int,
) -> RowLists | None:
    """The same for the corners of cubes in grids of side^3 rows, an eighth as long."""
    lists = list_terms(corners[:, :1], count)
    return None if lists is None else lists._replace(side=side)
