"""Triton kernels of furthest-point sampling; the picks are those of the definition, ties included.

Picking one point at a time needs a look at all points for each. Two observations avoid that:

- A point that is further from all picks than a threshold is the only kind that can be picked until
  no point is. So a phase lists the points above a threshold, its candidates.
- A candidate's turn comes before that of everything near it as soon as no candidate that is
  further (from the picks) lies within its distance (to the picks): nothing that is picked earlier
  can change that distance. Most candidates are decided at once, in a few rounds, and sorting
  them by distance gives the order in which they would have been picked one at a time.

Distances only fall, so an outdated distance of another candidate can delay a decision but never
falsify it: programs may read what others are writing. What is undecided after the rounds of a phase
is left to the next one, with everything that would be picked later.

Multiplications and additions are not fused, so that distances are those of the definition to the
last bit. Kernels read points axis by axis, (B, 3, N).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overt.ops.point_search.plain import TIE_STRIDE

# Candidates of a phase: more need fewer phases, and pairs of them are compared.
CANDIDATES, CANDIDATES_OF_MANY = 2048, 1024
MANY = 4  # clouds that fill the device with fewer candidates
BINS = 256  # of distances, among which the threshold of a phase is chosen
ROUNDS = 8  # decide nearly all candidates
# Phases that are launched, more than clouds of 30,000 points need: a number for any cloud, and more
# the more is picked. What is left then, `_finish` picks one at a time.
PHASES, PICKS_PER_CANDIDATE = 12, 0.4
POINT_BLOCK, PICK_BLOCK = 64, 64  # points of a program, and picks they are compared with at a time
LIST_BLOCK = 256  # points of a program that lists candidates
ROW_BLOCK, OTHERS_BLOCK = 16, 128  # candidates of a program, and others they are compared with
NEAR = 32  # candidates near a candidate that are remembered
PASS_BLOCK = 4096  # points that `_finish` looks through at a time

TIES = tl.constexpr(TIE_STRIDE)


@triton.jit
def _order(index, lines):
    """Of equally far points the one with the smallest order is picked: by (k mod 512, k)."""
    return index % TIES * lines + index // TIES


@triton.jit
def _is_first(squares, order, other_squares, other_order):
    """Whether a point is picked before another, as far as these distances tell."""
    return (squares > other_squares) | ((squares == other_squares) & (order < other_order))


@triton.jit
def _bin(squares, bound, BINS: tl.constexpr):
    """Which bin a squared distance is in; no real point is beyond the bound."""
    scale = BINS / tl.maximum(bound, 1e-30)
    return tl.minimum(tl.maximum((squares * scale).to(tl.int32), 0), BINS - 1)


@triton.jit
def _position(xs, index, points, real):
    x = tl.load(xs + index, mask=real, other=0.0)
    y = tl.load(xs + points + index, mask=real, other=0.0)
    z = tl.load(xs + 2 * points + index, mask=real, other=0.0)
    return x, y, z


@triton.jit
def _advance(
    coords,
    nearest,
    picks,
    state,
    bounds,
    histogram,
    points,
    count,
    BLOCK: tl.constexpr,
    PICKS: tl.constexpr,
    BINS: tl.constexpr,
):
    """Bring the distances to the nearest pick up to date, and count them by bins."""
    cloud = tl.program_id(0).to(tl.int64)
    applied = tl.load(state + cloud * 2)
    picked = tl.load(state + cloud * 2 + 1)
    if picked < count:
        xs = coords + cloud * 3 * points
        index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        real = index < points
        x, y, z = _position(xs, index, points, real)
        least = tl.full((BLOCK, PICKS), 3e38, dtype=tl.float32)
        for start in range(applied, picked, PICKS):
            # Beyond the last pick the first of them is repeated.
            number = start + tl.arange(0, PICKS)
            number = tl.where(number < picked, number, start)
            pick = tl.load(picks + cloud * count + number)
            px, py, pz = _position(xs, pick, points, number >= 0)
            dx = x[:, None] - px[None, :]
            dy = y[:, None] - py[None, :]
            dz = z[:, None] - pz[None, :]
            least = tl.minimum(least, dx * dx + dy * dy + dz * dz)
        squares = tl.load(nearest + cloud * points + index, mask=real, other=0.0)
        squares = tl.minimum(squares, tl.min(least, axis=1))
        tl.store(nearest + cloud * points + index, squares, mask=real)
        # Padding is counted in the lowest bin, which is never above a threshold.
        level = _bin(tl.where(real, squares, 0.0), tl.load(bounds + cloud), BINS)
        counts = tl.histogram(level, BINS)
        counts_of_cloud = histogram + cloud * BINS + tl.arange(0, BINS)
        tl.atomic_add(counts_of_cloud, counts, mask=counts > 0, sem="relaxed")


@triton.jit
def _lowest_bin(histogram, cloud, BINS: tl.constexpr, KEPT: tl.constexpr):
    """The lowest bin above which no more points lie than candidates are kept."""
    number = tl.arange(0, BINS)
    counts = tl.load(histogram + cloud * BINS + number)
    above = tl.sum(counts, axis=0) - tl.cumsum(counts, axis=0)
    return tl.min(tl.where(above <= KEPT, number, BINS - 1), axis=0)


@triton.jit
def _list(
    coords,
    nearest,
    state,
    bounds,
    histogram,
    listed,
    candidates,
    candidate_order,
    values,
    points,
    count,
    lines,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    KEPT: tl.constexpr,
):
    """List the points above the threshold, in any order: index and tie order; x, y, z, distance."""
    cloud = tl.program_id(0).to(tl.int64)
    if tl.load(state + cloud * 2 + 1) < count:
        xs = coords + cloud * 3 * points
        index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        real = index < points
        squares = tl.load(nearest + cloud * points + index, mask=real, other=0.0)
        lowest = _lowest_bin(histogram, cloud, BINS, KEPT)
        above = real & (_bin(squares, tl.load(bounds + cloud), BINS) > lowest)
        number = above.to(tl.int32)
        total = tl.sum(number, axis=0)
        if total > 0:
            first = tl.atomic_add(listed + cloud, total, sem="relaxed")
            slot = first + tl.cumsum(number, axis=0) - 1
            x, y, z = _position(xs, index, points, above)
            target = cloud * KEPT + slot
            tl.store(candidates + target, index, mask=above)
            tl.store(candidate_order + target, _order(index, lines), mask=above)
            own = values + cloud * 4 * KEPT + slot
            tl.store(own, x, mask=above)
            tl.store(own + KEPT, y, mask=above)
            tl.store(own + 2 * KEPT, z, mask=above)
            tl.store(own + 3 * KEPT, squares, mask=above)


@triton.jit
def _judge(x, y, z, squares, order, other, real, own, orders, flags, KEPT: tl.constexpr):
    """Compare candidates with others: (rows, others).

    Returns how far they are from each other, who has to wait for whom, and the distances to those
    that are decided and come first.
    """
    ox, oy, oz = _position(own, other, KEPT, real)
    other_squares = tl.load(own + 3 * KEPT + other, mask=real, other=-1.0)
    other_order = tl.load(orders + other, mask=real, other=0)
    is_decided = tl.load(flags + other, mask=real, other=0) > 0
    dx = x[:, None] - ox
    dy = y[:, None] - oy
    dz = z[:, None] - oz
    between = dx * dx + dy * dy + dz * dz
    comes_first = _is_first(other_squares, other_order, squares[:, None], order[:, None])
    waits = comes_first & (between < squares[:, None])
    return between, waits, tl.where(comes_first & is_decided, between, 3e38)


@triton.jit
def _decide(
    bounds,
    histogram,
    listed,
    candidate_order,
    values,
    decided,
    near,
    near_counts,
    FIRST: tl.constexpr,
    BINS: tl.constexpr,
    KEPT: tl.constexpr,
    ROWS: tl.constexpr,
    OTHERS: tl.constexpr,
    NEAR: tl.constexpr,
):
    """One round: candidates come nearer to those that are decided, or are decided themselves.

    The first round of a phase remembers who is near whom; as distances only fall, nobody is added.
    """
    cloud = tl.program_id(0).to(tl.int64)
    total = tl.load(listed + cloud)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    if tl.program_id(1) * ROWS < total:
        held = row < total
        own = values + cloud * 4 * KEPT
        orders = candidate_order + cloud * KEPT
        flags = decided + cloud * KEPT
        near_rows = near + (cloud * KEPT + row[:, None]) * NEAR
        squares = tl.load(own + 3 * KEPT + row, mask=held, other=0.0)
        lowest = _lowest_bin(histogram, cloud, BINS, KEPT)
        is_above = _bin(squares, tl.load(bounds + cloud), BINS) > lowest
        waiting = held & is_above & (tl.load(flags + row, mask=held, other=1) == 0)
        if tl.sum(waiting.to(tl.int32), axis=0) > 0:
            x, y, z = _position(own, row, KEPT, held)
            order = tl.load(orders + row, mask=held, other=0)
            if FIRST:
                near_count = tl.zeros((ROWS,), dtype=tl.int32)
                compares_all = True
            else:
                near_count = tl.load(near_counts + cloud * KEPT + row, mask=waiting, other=0)
                compares_all = tl.max(near_count, axis=0) > NEAR
            if compares_all:
                least = tl.full((ROWS, OTHERS), 3e38, dtype=tl.float32)
                waits = tl.zeros((ROWS, OTHERS), dtype=tl.int32)
                for start in range(0, total, OTHERS):
                    other = (start + tl.arange(0, OTHERS))[None, :]
                    real = other < total
                    between, waits_for, applied = _judge(
                        x, y, z, squares, order, other, real, own, orders, flags, KEPT
                    )
                    waits |= waits_for.to(tl.int32)
                    least = tl.minimum(least, applied)
                    if FIRST:
                        is_near = real & (between < squares[:, None])
                        ones = is_near.to(tl.int32)
                        slot = near_count[:, None] + tl.cumsum(ones, axis=1) - 1
                        others = tl.broadcast_to(other, (ROWS, OTHERS))
                        tl.store(near_rows + slot, others, mask=is_near & (slot < NEAR))
                        near_count += tl.sum(ones, axis=1)
                has_to_wait = tl.max(waits, axis=1)
                nearest = tl.min(least, axis=1)
                if FIRST:
                    tl.store(near_counts + cloud * KEPT + row, near_count, mask=held)
            else:
                slot = tl.arange(0, NEAR)[None, :]
                remembered = slot < near_count[:, None]
                other = tl.load(near_rows + slot, mask=remembered, other=0)
                _, waits_for, applied = _judge(
                    x, y, z, squares, order, other, remembered, own, orders, flags, KEPT
                )
                has_to_wait = tl.max(waits_for.to(tl.int32), axis=1)
                nearest = tl.min(applied, axis=1)
            tl.store(own + 3 * KEPT + row, nearest, mask=waiting & (nearest < squares))
            tl.store(flags + row, 1, mask=waiting & (has_to_wait == 0))


@triton.jit
def _commit(
    state,
    next_state,
    bounds,
    next_bounds,
    histogram,
    listed,
    candidates,
    candidate_order,
    values,
    decided,
    picks,
    count,
    BINS: tl.constexpr,
    KEPT: tl.constexpr,
    ROWS: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """Write the decided candidates that come before all undecided ones as picks, in order."""
    cloud = tl.program_id(0).to(tl.int64)
    picked = tl.load(state + cloud * 2 + 1)
    total = tl.load(listed + cloud)
    bound = tl.load(bounds + cloud)
    lowest = _lowest_bin(histogram, cloud, BINS, KEPT)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    held = row < total
    own = values + cloud * 4 * KEPT
    orders = candidate_order + cloud * KEPT
    flags = decided + cloud * KEPT
    squares = tl.load(own + 3 * KEPT + row, mask=held, other=-1.0)
    order = tl.load(orders + row, mask=held, other=0)
    is_decided = held & (tl.load(flags + row, mask=held, other=0) > 0)
    if (tl.program_id(1) == 0) | (tl.program_id(1) * ROWS < total):
        decided_before = tl.zeros((ROWS, OTHERS), dtype=tl.int32)
        undecided_before = tl.zeros((ROWS, OTHERS), dtype=tl.int32)
        furthest = tl.full((OTHERS,), -1.0, dtype=tl.float32)  # of the undecided ones
        for start in range(0, total, OTHERS):
            other = start + tl.arange(0, OTHERS)
            real = other < total
            other_squares = tl.load(own + 3 * KEPT + other, mask=real, other=-1.0)
            other_order = tl.load(orders + other, mask=real, other=0)
            flag = tl.load(flags + other, mask=real, other=0) > 0
            waits = real & (flag == 0) & (_bin(other_squares, bound, BINS) > lowest)
            comes_first = _is_first(
                other_squares[None, :], other_order[None, :], squares[:, None], order[:, None]
            )
            decided_before += (comes_first & flag[None, :]).to(tl.int32)
            undecided_before |= (comes_first & waits[None, :]).to(tl.int32)
            furthest = tl.maximum(furthest, tl.where(waits, other_squares, -1.0))
        goes = is_decided & (tl.max(undecided_before, axis=1) == 0)
        index = tl.load(candidates + cloud * KEPT + row, mask=goes, other=0)
        position = picked + tl.sum(decided_before, axis=1)
        tl.store(picks + cloud * count + position, index, mask=goes & (position < count))
        tl.atomic_add(next_state + cloud * 2 + 1, tl.sum(goes.to(tl.int32), axis=0), sem="relaxed")
        if tl.program_id(1) == 0:
            tl.store(next_state + cloud * 2, picked)
            tl.atomic_add(next_state + cloud * 2 + 1, picked, sem="relaxed")
            # What is left is at most as far as the undecided, or as the threshold.
            left = tl.max(furthest, axis=0)
            threshold = bound * ((lowest + 1.0) / BINS)
            tl.store(next_bounds + cloud, tl.where(left > 0.0, left, threshold))


@triton.jit
def _finish(
    coords,
    nearest,
    picks,
    state,
    points,
    count,
    lines,
    BLOCK: tl.constexpr,
):
    """Pick the remaining points one at a time, in one program for each cloud."""
    cloud = tl.program_id(0).to(tl.int64)
    xs = coords + cloud * 3 * points
    applied = tl.load(state + cloud * 2)
    picked = tl.load(state + cloud * 2 + 1)
    lane = tl.arange(0, BLOCK)
    while picked < count:
        best = tl.full((BLOCK,), -1, dtype=tl.int64)
        for first in range(0, points, BLOCK):
            index = first + lane
            real = index < points
            x, y, z = _position(xs, index, points, real)
            squares = tl.load(nearest + cloud * points + index, mask=real, other=0.0)
            for number in range(applied, picked):
                pick = tl.load(picks + cloud * count + number)
                dx = x - tl.load(xs + pick)
                dy = y - tl.load(xs + points + pick)
                dz = z - tl.load(xs + 2 * points + pick)
                squares = tl.minimum(squares, dx * dx + dy * dy + dz * dz)
            tl.store(nearest + cloud * points + index, squares, mask=real)
            # Sorts by distance, then by order: positive floats sort like their bits.
            code = squares.to(tl.int32, bitcast=True).to(tl.int64) << 32
            code = code | (0x7FFFFFFF - _order(index, lines)).to(tl.int64)
            best = tl.maximum(best, tl.where(real, code, -1))
        top = tl.max(best, axis=0)
        furthest = (top >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        order = 0x7FFFFFFF - (top & 0x7FFFFFFF).to(tl.int32)
        tl.store(picks + cloud * count + picked, order % lines * TIES + order // lines)
        applied = picked
        # Nothing is left but picked points: the rest stays point 0.
        picked = tl.where(furthest > 0.0, picked + 1, count)
        tl.debug_barrier()


@torch.library.custom_op("overt::furthest_point_sample", mutates_args=())
def furthest_point_sample_fused(coords: Tensor, count: int) -> Tensor:
    """See `furthest_point_sample`."""
    batch, points, _ = coords.shape
    kept = CANDIDATES if batch < MANY else CANDIDATES_OF_MANY
    phases = PHASES + int(count / (PICKS_PER_CANDIDATE * kept))

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=coords.device)

    axes = coords.float().transpose(1, 2).contiguous()  # (B, 3, N)
    nearest = torch.full((batch, points), 3e38, device=coords.device)
    x, y, z = (axes - axes[:, :, :1]).unbind(1)
    bounds = torch.empty((phases + 1, batch), device=coords.device)
    bounds[0] = (x * x + y * y + z * z).amax(1)
    state = zeros(phases + 1, batch, 2)  # of each phase: picks applied, picks made
    state[0, :, 1] = 1
    picks = zeros(batch, count)
    histograms, listed = zeros(phases, batch, BINS), zeros(phases, batch)
    decided = zeros(phases, batch, kept)
    candidates, order = zeros(batch, kept), zeros(batch, kept)
    near, near_counts = zeros(batch, kept, NEAR), zeros(batch, kept)
    values = torch.empty((batch, 4, kept), device=coords.device)
    lines = triton.cdiv(points, TIE_STRIDE)
    row_grid = (batch, triton.cdiv(kept, ROW_BLOCK))
    exact = {"enable_fp_fusion": False, "num_warps": 4}
    blocks = {"BINS": BINS, "KEPT": kept, "ROWS": ROW_BLOCK, "OTHERS": OTHERS_BLOCK, **exact}
    for phase in range(phases):
        threshold = (bounds[phase], histograms[phase])
        _advance[(batch, triton.cdiv(points, POINT_BLOCK))](
            axes, nearest, picks, state[phase], *threshold, points, count,
            BLOCK=POINT_BLOCK, PICKS=PICK_BLOCK, BINS=BINS, **exact,
        )  # fmt: skip
        _list[(batch, triton.cdiv(points, LIST_BLOCK))](
            axes, nearest, state[phase], *threshold, listed[phase], candidates, order, values,
            points, count, lines, BLOCK=LIST_BLOCK, BINS=BINS, KEPT=kept, **exact,
        )  # fmt: skip
        for round_number in range(ROUNDS):
            _decide[row_grid](
                *threshold, listed[phase], order, values, decided[phase], near, near_counts,
                FIRST=round_number == 0, NEAR=NEAR, **blocks,
            )  # fmt: skip
        _commit[row_grid](
            state[phase], state[phase + 1], bounds[phase], bounds[phase + 1], histograms[phase],
            listed[phase], candidates, order, values, decided[phase], picks, count, **blocks,
        )  # fmt: skip
    whole = min(triton.next_power_of_2(points), PASS_BLOCK)
    _finish[(batch,)](
        axes, nearest, picks, state[phases], points, count, lines, BLOCK=whole, **exact
    )
    return picks


@furthest_point_sample_fused.register_fake
def _(coords: Tensor, count: int) -> Tensor:
    return coords.new_empty((coords.shape[0], count), dtype=torch.int32)
