"""Triton kernels of furthest-point sampling; the picks are those of the definition, ties included.

Picking one point at a time needs a look at all points for each. But a point that is further from
all picks than a threshold keeps its distance until something near it is picked, and what lies
below the threshold can only come nearer. So all points above a threshold, if they fit on the
chip, are sampled on their own until their furthest is no longer above it: hundreds of picks, then
one look at all points.

Multiplications and additions are not fused, so that distances are those of the definition to the
last bit. Kernels read points axis by axis, (B, 3, N).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overt.ops.point_search.plain import TIE_STRIDE

CANDIDATES = 1024  # points that a round of furthest-point sampling may hold on the chip
PASS_BLOCK = 4096  # points that one program looks through at a time
UPDATE_BLOCK = 512
PICKS_PER_ROUND = 128  # fewer than a round makes on clouds; what is left is done by one program

TIES = tl.constexpr(TIE_STRIDE)


@triton.jit
def _rank(index, lines):
    """The smaller (k mod 512, k) is, the larger."""
    return (0x7FFFFFFF - (index % TIES * lines + index // TIES)).to(tl.int64)


@triton.jit
def _code(squares, rank):
    """Sorts by distance, and equal distances by rank."""
    return (squares.to(tl.int32, bitcast=True).to(tl.int64) << 32) | rank


@triton.jit
def _index_of(code, lines):
    order = 0x7FFFFFFF - (code & 0x7FFFFFFF).to(tl.int32)
    return order % lines * TIES + order // lines


@triton.jit
def _advance(coords, nearest, picks, state, points, count, cloud, first, BLOCK: tl.constexpr):
    """Distances of a block of points to the nearest pick, brought up to date."""
    xs = coords + cloud * 3 * points
    applied = tl.load(state + cloud * 2)
    picked = tl.load(state + cloud * 2 + 1)
    index = first + tl.arange(0, BLOCK)
    real = index < points
    x = tl.load(xs + index, mask=real, other=0.0)
    y = tl.load(xs + points + index, mask=real, other=0.0)
    z = tl.load(xs + 2 * points + index, mask=real, other=0.0)
    squares = tl.load(nearest + cloud * points + index, mask=real, other=0.0)
    for number in range(applied, picked):
        pick = tl.load(picks + cloud * count + number)
        dx = x - tl.load(xs + pick)
        dy = y - tl.load(xs + points + pick)
        dz = z - tl.load(xs + 2 * points + pick)
        squares = tl.minimum(squares, dx * dx + dy * dy + dz * dz)
    tl.store(nearest + cloud * points + index, squares, mask=real)


@triton.jit
def _pick(
    coords,
    nearest,
    picks,
    state,
    margins,
    candidates,
    points,
    count,
    lines,
    cloud,
    BLOCK: tl.constexpr,
    KEPT: tl.constexpr,
):
    """One round: the points above a threshold, then picks among them while they are furthest."""
    xs = coords + cloud * 3 * points
    squares_of = nearest + cloud * points
    listed = candidates + cloud * KEPT
    picked = tl.load(state + cloud * 2 + 1)
    margin = tl.load(margins + cloud)
    tl.store(state + cloud * 2, picked)
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), -1, dtype=tl.int64)
    for first in range(0, points, BLOCK):
        index = first + lane
        real = index < points
        squares = tl.load(squares_of + index, mask=real, other=0.0)
        best = tl.maximum(best, tl.where(real, _code(squares, _rank(index, lines)), -1))
    top = tl.max(best, axis=0)
    furthest = (top >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    threshold = furthest * (1.0 - margin)
    above_count = 0
    for first in range(0, points, BLOCK):
        index = first + lane
        real = index < points
        squares = tl.load(squares_of + index, mask=real, other=0.0)
        above = (real & (squares > threshold)).to(tl.int32)
        slot = above_count + tl.cumsum(above, axis=0) - 1
        tl.store(listed + slot, index, mask=(above > 0) & (slot < KEPT))
        above_count += tl.sum(above, axis=0)
    tl.debug_barrier()
    if above_count > KEPT:  # too many for the chip: one pick now, a narrower margin next time
        tl.store(picks + cloud * count + picked, _index_of(top, lines))
        picked += 1
        margin = margin * 0.5
    else:
        seat = tl.arange(0, KEPT)
        held = seat < above_count
        candidate = tl.load(listed + seat, mask=held, other=0)
        x = tl.load(xs + candidate)
        y = tl.load(xs + points + candidate)
        z = tl.load(xs + 2 * points + candidate)
        rank = _rank(candidate, lines)
        left = tl.where(held, tl.load(squares_of + candidate), 0.0)
        goes = above_count > 0
        while goes:
            code = tl.max(_code(left, rank), axis=0)
            is_furthest = (code >> 32).to(tl.int32).to(tl.float32, bitcast=True) > threshold
            pick = _index_of(code, lines)
            tl.store(picks + cloud * count + picked, pick, mask=is_furthest)
            dx = x - tl.load(xs + pick)
            dy = y - tl.load(xs + points + pick)
            dz = z - tl.load(xs + 2 * points + pick)
            left = tl.where(is_furthest, tl.minimum(left, dx * dx + dy * dy + dz * dz), left)
            picked += is_furthest.to(tl.int32)
            goes = is_furthest & (picked < count)
        if above_count * 2 < KEPT:
            margin = tl.minimum(margin * 1.3, 0.9)
    # Nothing is left but picked points: the rest stays point 0.
    picked = tl.where(furthest > 0.0, picked, count)
    tl.store(state + cloud * 2 + 1, picked)
    tl.store(margins + cloud, margin)


@triton.jit
def _advance_all(coords, nearest, picks, state, points, count, BLOCK: tl.constexpr):
    cloud = tl.program_id(0).to(tl.int64)
    if tl.load(state + cloud * 2) < count:
        first = tl.program_id(1) * BLOCK
        _advance(coords, nearest, picks, state, points, count, cloud, first, BLOCK)


@triton.jit
def _pick_all(
    coords,
    nearest,
    picks,
    state,
    margins,
    candidates,
    points,
    count,
    lines,
    BLOCK: tl.constexpr,
    KEPT: tl.constexpr,
):
    cloud = tl.program_id(0).to(tl.int64)
    if tl.load(state + cloud * 2 + 1) < count:
        _pick(
            coords, nearest, picks, state, margins, candidates, points, count, lines, cloud,
            BLOCK, KEPT,
        )  # fmt: skip
    else:
        tl.store(state + cloud * 2, count)


@triton.jit
def _finish(
    coords,
    nearest,
    picks,
    state,
    margins,
    candidates,
    points,
    count,
    lines,
    BLOCK: tl.constexpr,
    KEPT: tl.constexpr,
):
    """All rounds that are left, in one program for each cloud."""
    cloud = tl.program_id(0).to(tl.int64)
    while tl.load(state + cloud * 2 + 1) < count:
        for first in range(0, points, BLOCK):
            _advance(coords, nearest, picks, state, points, count, cloud, first, BLOCK)
        tl.debug_barrier()
        _pick(
            coords, nearest, picks, state, margins, candidates, points, count, lines, cloud,
            BLOCK, KEPT,
        )  # fmt: skip
        tl.debug_barrier()


@torch.library.custom_op("overt::furthest_point_sample", mutates_args=())
def furthest_point_sample_fused(coords: Tensor, count: int) -> Tensor:
    """See `furthest_point_sample`."""
    batch, points, _ = coords.shape
    device = coords.device
    axes = coords.float().transpose(1, 2).contiguous()  # (B, 3, N)
    nearest = torch.full((batch, points), 1e38, device=device)
    picks = torch.zeros((batch, count), dtype=torch.int32, device=device)
    state = torch.zeros((batch, 2), dtype=torch.int32, device=device)  # picks applied, picks made
    state[:, 1] = 1
    margins = torch.full((batch,), 0.1, device=device)
    candidates = torch.empty((batch, CANDIDATES), dtype=torch.int32, device=device)
    lines = triton.cdiv(points, TIE_STRIDE)
    update = min(triton.next_power_of_2(points), UPDATE_BLOCK)
    whole = min(triton.next_power_of_2(points), PASS_BLOCK)
    rest = (axes, nearest, picks, state, margins, candidates, points, count, lines)
    for _ in range(triton.cdiv(count, PICKS_PER_ROUND)):
        _advance_all[(batch, triton.cdiv(points, update))](
            axes, nearest, picks, state, points, count,
            BLOCK=update, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        _pick_all[(batch,)](
            *rest, BLOCK=whole, KEPT=CANDIDATES, num_warps=8, enable_fp_fusion=False
        )
    _finish[(batch,)](*rest, BLOCK=whole, KEPT=CANDIDATES, num_warps=8, enable_fp_fusion=False)
    return picks


@furthest_point_sample_fused.register_fake
def _(coords: Tensor, count: int) -> Tensor:
    return coords.new_empty((coords.shape[0], count), dtype=torch.int32)
