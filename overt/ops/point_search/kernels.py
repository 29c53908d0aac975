"""Triton kernels of ball query and three nearest centers; the twins choose the same points.

Multiplications and additions are not fused, so that distances are those of the definition to the
last bit. Kernels read points axis by axis, (B, 3, N).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overt.ops.point_search.plain import LARGEST, SMALLEST, squared_radius

# Of a ball query: many small programs, since each has to look at all points.
CENTERS, POINTS_AT_ONCE = 4, 128
QUERIES = 64  # points of a program that looks for their nearest centers, one for each thread
UNROLL = 8


@triton.jit
def _ball(
    centers,
    points_of,
    index,
    hits,
    count,
    points,
    limit,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
):
    """A few centers look at the points in their order, a block at a time."""
    cloud = tl.program_id(1).to(tl.int64)
    center = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = center < count
    row = cloud * count + center
    cx = tl.load(centers + row * 3, mask=real, other=0.0)[:, None]
    cy = tl.load(centers + row * 3 + 1, mask=real, other=0.0)[:, None]
    cz = tl.load(centers + row * 3 + 2, mask=real, other=0.0)[:, None]
    xs = points_of + cloud * 3 * points
    slots_of = index + row[:, None] * SLOTS
    hits_so_far = tl.zeros((BLOCK,), dtype=tl.int32)
    first_hit = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, points, STEP):
        number = start + tl.arange(0, STEP)
        is_real = number < points
        dx = cx - tl.load(xs + number, mask=is_real, other=0.0)[None, :]
        dy = cy - tl.load(xs + points + number, mask=is_real, other=0.0)[None, :]
        dz = cz - tl.load(xs + 2 * points + number, mask=is_real, other=0.0)[None, :]
        hit = (dx * dx + dy * dy + dz * dz < limit) & is_real[None, :] & real[:, None]
        ones = hit.to(tl.int32)
        if tl.max(tl.max(ones, axis=0), axis=0) > 0:  # most blocks have no hit
            slot = hits_so_far[:, None] + tl.cumsum(ones, axis=1) - 1
            tl.store(slots_of + slot, number[None, :], mask=hit & (slot < SLOTS))
            earliest = tl.min(tl.where(hit, number[None, :], points), axis=1)
            first_hit = tl.where((hits_so_far == 0) & (earliest < points), earliest, first_hit)
            hits_so_far += tl.sum(ones, axis=1)
    hits_so_far = tl.minimum(hits_so_far, SLOTS)
    tl.store(hits + row, hits_so_far, mask=real)
    slot = tl.arange(0, WIDTH)[None, :]
    unused = (slot >= hits_so_far[:, None]) & (slot < SLOTS) & real[:, None]
    tl.store(slots_of + slot, first_hit[:, None], mask=unused)


@torch.library.custom_op("overt::ball_query", mutates_args=())
def ball_query_fused(
    centers: Tensor, points: Tensor, radius: float, slots: int
) -> tuple[Tensor, Tensor]:
    """See `ball_query`."""
    batch, count, _ = centers.shape
    index = torch.empty((batch, count, slots), dtype=torch.int32, device=points.device)
    hits = torch.empty((batch, count), dtype=torch.int32, device=points.device)
    _ball[(triton.cdiv(count, CENTERS), batch)](
        centers.float().contiguous(),
        points.float().transpose(1, 2).contiguous(),
        index,
        hits,
        count,
        points.shape[1],
        squared_radius(radius),
        SLOTS=slots,
        WIDTH=triton.next_power_of_2(slots),
        BLOCK=CENTERS,
        STEP=POINTS_AT_ONCE,
        num_warps=1,
        enable_fp_fusion=False,
    )
    return index, hits


@ball_query_fused.register_fake
def ball_query_shapes(
    centers: Tensor, points: Tensor, radius: float, slots: int
) -> tuple[Tensor, Tensor]:
    """Return empty results, as every kernel of a ball query gives them."""
    shape = centers.shape[:2]
    return (
        centers.new_empty((*shape, slots), dtype=torch.int32),
        centers.new_empty(shape, dtype=torch.int32),
    )


# --- three nearest centers -----------------------------------------------------------------------


@triton.jit
def _three(
    points_of,
    centers,
    index,
    squares,
    points,
    count,
    SMALL: tl.constexpr,
    LARGE: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Each thread has a point and keeps the three nearest of the centers it has seen."""
    cloud = tl.program_id(1).to(tl.int64)
    point = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = point < points
    row = cloud * points + point
    px = tl.load(points_of + row * 3, mask=real, other=0.0)
    py = tl.load(points_of + row * 3 + 1, mask=real, other=0.0)
    pz = tl.load(points_of + row * 3 + 2, mask=real, other=0.0)
    xs = centers + cloud * 3 * count
    far = tl.full((BLOCK,), 3.0e38, dtype=tl.float32)
    none = tl.zeros((BLOCK,), dtype=tl.int32)
    d0, d1, d2 = far, far, far
    i0, i1, i2 = none, none, none
    for start in range(0, count, STEPS):
        for step in tl.static_range(STEPS):
            number = start + step
            is_real = number < count
            dx = px - tl.load(xs + number, mask=is_real, other=0.0)
            dy = py - tl.load(xs + count + number, mask=is_real, other=0.0)
            dz = pz - tl.load(xs + 2 * count + number, mask=is_real, other=0.0)
            d = dx * dx + dy * dy + dz * dz
            first = (d < d0) & is_real
            second = (d < d1) & is_real
            third = (d < d2) & is_real
            d2 = tl.where(second, d1, tl.where(third, d, d2))
            i2 = tl.where(second, i1, tl.where(third, number, i2))
            d1 = tl.where(first, d0, tl.where(second, d, d1))
            i1 = tl.where(first, i0, tl.where(second, number, i1))
            d0 = tl.where(first, d, d0)
            i0 = tl.where(first, number, i0)
    tl.store(index + row * 3, i0, mask=real)
    tl.store(index + row * 3 + 1, i1, mask=real)
    tl.store(index + row * 3 + 2, i2, mask=real)
    tl.store(squares + row * 3, tl.minimum(tl.maximum(d0, SMALL), LARGE), mask=real)
    tl.store(squares + row * 3 + 1, tl.minimum(tl.maximum(d1, SMALL), LARGE), mask=real)
    tl.store(squares + row * 3 + 2, tl.minimum(tl.maximum(d2, SMALL), LARGE), mask=real)


@torch.library.custom_op("overt::three_nearest", mutates_args=())
def three_nearest_fused(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """See `three_nearest`; indices, and squared distances within their bounds."""
    batch, count, _ = points.shape
    index = torch.empty((batch, count, 3), dtype=torch.int32, device=points.device)
    squares = torch.empty((batch, count, 3), dtype=torch.float32, device=points.device)
    _three[(triton.cdiv(count, QUERIES), batch)](
        points.float().contiguous(),
        centers.float().transpose(1, 2).contiguous(),
        index,
        squares,
        count,
        centers.shape[1],
        SMALL=SMALLEST,
        LARGE=LARGEST,
        BLOCK=QUERIES,
        STEPS=UNROLL,
        num_warps=QUERIES // 32,
        enable_fp_fusion=False,
    )
    return index, squares


@three_nearest_fused.register_fake
def three_nearest_shapes(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Return empty results, as every kernel for the nearest centers gives them."""
    shape = (*points.shape[:2], 3)
    return points.new_empty(shape, dtype=torch.int32), points.new_empty(shape, dtype=torch.float32)
