"""A Triton kernel that sums the listed terms of each row, without atomics.

A program serves a block of rows and up to 64 channels. Lanes go through the list of a row side by
side, since clouds are surfaces: most cells are empty, and some have hundreds of points.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

CHANNELS = 64  # of a program: wide rows are summed by several, since there are few of them
MOST_LANES = 64


class Blocks:
    """What a program sums: rows times lanes times channels is a tile."""

    rows, tile, warps = 4, 1024, 1
    rows_of_cells, tile_of_cells, warps_of_cells = 2, 1024, 1


@triton.jit
def _sum(
    rows,
    starts,
    terms,
    weight,
    result,
    count,
    channels,
    side,
    K: tl.constexpr,
    WEIGHTED: tl.constexpr,
    CELLS: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    lane = tl.arange(0, LANES)[None, :]
    real = (row < count)[:, None]
    if CELLS:
        # Cells above each other along z are one range of the lists: four ranges in all, and every
        # fourth lane goes through the same.
        STEP: tl.constexpr = LANES // 4
        x_bit = lane // 2 % 2
        y_bit = lane % 2
        lane = lane // 4
        x = (row // (side * side) % side)[:, None]
        y = (row // side % side)[:, None]
        z = (row % side)[:, None]
        exists = real & (x >= x_bit) & (y >= y_bit)
        cell = row[:, None] - (x_bit * side + y_bit) * side
        first = tl.load(starts + cell - (z > 0).to(tl.int32), mask=exists, other=0)
        own = tl.load(starts + cell, mask=exists, other=0)
        last = tl.load(starts + cell + 1, mask=exists, other=0)
    else:
        STEP: tl.constexpr = LANES
        first = tl.load(starts + row[:, None], mask=real, other=0)
        last = tl.load(starts + row[:, None] + 1, mask=real, other=0)
    longest = tl.max(tl.max(last - first, axis=1), axis=0)
    in_range = channel < channels
    total = tl.zeros((ROWS, LANES, CHANNELS), dtype=tl.float32)
    for step in range(0, longest, STEP):
        at = first + step + lane  # (ROWS, LANES)
        adds = at < last
        term = tl.load(terms + at, mask=adds, other=0)
        source = term // K
        if WEIGHTED:
            if CELLS:
                corner = x_bit * 4 + y_bit * 2 + (at < own).to(tl.int32)
                offset = term.to(tl.int64) * 8 + corner
            else:
                offset = term.to(tl.int64)
            factor = tl.load(weight + offset, mask=adds, other=0.0)[:, :, None]
        address = source.to(tl.int64)[:, :, None] * channels + channel[None, None, :]
        values = tl.load(
            rows + address, mask=adds[:, :, None] & in_range[None, None, :], other=0.0
        ).to(tl.float32)
        if WEIGHTED:
            # A cell below whose weight is 0 may be no corner at all: Inf must not get there.
            values = tl.where(factor != 0, values * factor, 0.0)
        total += values
    sums = tl.sum(total, axis=1)  # (ROWS, CHANNELS)
    target = result + row.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(target, sums.to(result.dtype.element_ty), mask=real & in_range[None, :])


def sum_lists(
    rows: Tensor, starts: Tensor, terms: Tensor, weight: Tensor | None, per_result: int, side: int
) -> Tensor:
    """Sums (R, C) of weight[o, k] * rows[o] over the terms o * K + k of each row."""
    count, channels, cells = starts.shape[0] - 1, rows.shape[1], side > 0
    result = rows.new_empty((count, channels))
    if result.numel() == 0:
        return result
    assert not cells or (weight is not None and per_result == 8)
    height, tile, warps = (
        (Blocks.rows_of_cells, Blocks.tile_of_cells, Blocks.warps_of_cells)
        if cells
        else (Blocks.rows, Blocks.tile, Blocks.warps)
    )
    width = min(triton.next_power_of_2(channels), CHANNELS)
    lanes = min(max(tile // (height * width), 4 if cells else 1), MOST_LANES)
    _sum[(triton.cdiv(count, height), triton.cdiv(channels, width))](
        rows.contiguous(),
        starts,
        terms,
        starts if weight is None else weight.contiguous(),
        result,
        count,
        channels,
        side,
        K=1 if cells else per_result,  # one term of a cube is listed
        WEIGHTED=weight is not None,
        CELLS=cells,
        ROWS=height,
        LANES=lanes,
        CHANNELS=width,
        num_warps=warps,
    )
    return result
