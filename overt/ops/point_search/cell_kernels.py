"""Triton kernels of ball query and three nearest centers for large clouds, by cells of a grid.

A warp serves one center or one point, and looks into its cell and those around it: 3 x 3 ranges of
sorted points. Where that may miss something it looks at all points, so the choices are those of the
definition: of a ball with more points than slots the first by index count, and the nearest centers
may lie beyond the cells.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overt.ops.point_search.cells import GRID, SLACK, sort_into_cells
from overt.ops.point_search.kernels import ball_query_shapes, three_nearest_shapes
from overt.ops.point_search.plain import LARGEST, SMALLEST, squared_radius

STEP = 32  # points that a warp looks at together

SIDE = tl.constexpr(GRID)
FAR = tl.constexpr(0x7F7FFFFF00000000)  # the largest distance, and center 0
REACH = tl.constexpr(1 - SLACK)


@triton.jit
def _cell(x, low, side):
    return tl.minimum(tl.maximum(((x - low) / side).to(tl.int32), 0), SIDE - 1)


@triton.jit
def _home(x, y, z, low, side, cloud):
    """The cell of a position, and the corner and side of its cloud's grid."""
    size = tl.load(side + cloud)
    lx = tl.load(low + cloud * 3)
    ly = tl.load(low + cloud * 3 + 1)
    lz = tl.load(low + cloud * 3 + 2)
    return _cell(x, lx, size), _cell(y, ly, size), _cell(z, lz, size), lx, ly, lz, size


@triton.jit
def _range(starts, cloud, gx, gy, gz, column):
    """The sorted points of three cells along z: column 4 is the own one."""
    x = gx + column // 3 - 1
    y = gy + column % 3 - 1
    inside = (x >= 0) & (x < SIDE) & (y >= 0) & (y < SIDE)
    row = starts + ((cloud * SIDE + x) * SIDE + y) * SIDE
    first = tl.load(row + tl.maximum(gz - 1, 0), mask=inside, other=0)
    last = tl.load(row + tl.minimum(gz + 1, SIDE - 1) + 1, mask=inside, other=0)
    return first, last


@triton.jit
def _squares(x, y, z, axes, at, stride, real):
    dx = x - tl.load(axes + at, mask=real, other=0.0)
    dy = y - tl.load(axes + stride + at, mask=real, other=0.0)
    dz = z - tl.load(axes + 2 * stride + at, mask=real, other=0.0)
    return dx * dx + dy * dy + dz * dz


@triton.jit
def _ball(
    centers,
    points_of,
    low,
    side,
    starts,
    sorted_points,
    sorted_axes,
    index,
    hits,
    count,
    points,
    total,
    limit,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
):
    center = tl.program_id(0).to(tl.int64)
    cloud = center // count
    x = tl.load(centers + center * 3)
    y = tl.load(centers + center * 3 + 1)
    z = tl.load(centers + center * 3 + 2)
    gx, gy, gz, _, _, _, _ = _home(x, y, z, low, side, cloud)
    slots = index + center * SLOTS
    hit_count = 0
    for column in range(9):
        first, last = _range(starts, cloud, gx, gy, gz, column)
        for start in range(first, last, STEP):
            at = start + tl.arange(0, STEP)
            real = at < last
            hit = (_squares(x, y, z, sorted_axes, at, total, real) < limit) & real
            ones = hit.to(tl.int32)
            slot = hit_count + tl.cumsum(ones, axis=0) - 1
            number = tl.load(sorted_points + at, mask=hit, other=0)
            tl.store(slots + slot, number, mask=hit & (slot < SLOTS))
            hit_count += tl.sum(ones, axis=0)
    tl.debug_barrier()
    slot = tl.arange(0, WIDTH)
    if hit_count > SLOTS:  # the first by index count: look at all points in their order
        xs = points_of + cloud * 3 * points
        filled = 0
        start = 0
        while (filled < SLOTS) & (start < points):
            number = start + tl.arange(0, STEP)
            real = number < points
            hit = (_squares(x, y, z, xs, number, points, real) < limit) & real
            ones = hit.to(tl.int32)
            position = filled + tl.cumsum(ones, axis=0) - 1
            tl.store(slots + position, number, mask=hit & (position < SLOTS))
            filled += tl.sum(ones, axis=0)
            start += STEP
    else:
        number = tl.load(slots + slot, mask=slot < hit_count, other=0x7FFFFFFF)
        number = tl.sort(number)
        # Unused slots repeat the first hit; without any they hold point 0.
        earliest = tl.where(hit_count > 0, tl.min(number, axis=0), 0)
        tl.debug_barrier()
        tl.store(slots + slot, tl.where(slot < hit_count, number, earliest), mask=slot < SLOTS)
    tl.store(hits + center, tl.minimum(hit_count, SLOTS))


@torch.library.custom_op("overt::ball_query_in_cells", mutates_args=())
def ball_query_in_cells(
    centers: Tensor, points: Tensor, radius: float, slots: int
) -> tuple[Tensor, Tensor]:
    """See `ball_query`."""
    batch, count, _ = centers.shape
    index = torch.empty((batch, count, slots), dtype=torch.int32, device=points.device)
    hits = torch.empty((batch, count), dtype=torch.int32, device=points.device)
    cells = sort_into_cells(points, radius)
    _ball[(batch * count,)](
        centers.float().contiguous(),
        points.float().transpose(1, 2).contiguous(),
        *cells,
        index,
        hits,
        count,
        points.shape[1],
        batch * points.shape[1],
        squared_radius(radius),
        SLOTS=slots,
        WIDTH=triton.next_power_of_2(slots),
        STEP=STEP,
        num_warps=1,
        enable_fp_fusion=False,
    )
    return index, hits


ball_query_in_cells.register_fake(ball_query_shapes)


# --- three nearest centers -----------------------------------------------------------------------


@triton.jit
def _keep(x, y, z, axes, numbers, first, last, total, code0, code1, code2, STEP: tl.constexpr):
    """Keep the three smallest codes, by distance and number, of each lane."""
    for start in range(first, last, STEP):
        at = start + tl.arange(0, STEP)
        real = at < last
        squares = _squares(x, y, z, axes, at, total, real)
        number = tl.load(numbers + at, mask=real, other=0)
        code = (squares.to(tl.int32, bitcast=True).to(tl.int64) << 32) | number.to(tl.int64)
        code = tl.where(real & (squares < 3.0e38), code, FAR)
        code2 = tl.minimum(code2, tl.maximum(code1, code))
        code1 = tl.minimum(code1, tl.maximum(code0, code))
        code0 = tl.minimum(code0, code)
    return code0, code1, code2


@triton.jit
def _pop(code0, code1, code2):
    """The smallest code of all lanes, which its lane gives up."""
    least = tl.min(code0, axis=0)
    gives = code0 == least
    code0 = tl.where(gives, code1, code0)
    code1 = tl.where(gives, code2, code1)
    return least, code0, code1, tl.where(gives, FAR, code2)


@triton.jit
def _distance(code):
    return (code >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _to_border(x, low, size, cell):
    """How far a coordinate is from the nearer end of its three cells; an end of the grid is far."""
    offset = x - low
    before = tl.where(cell > 1, offset - (cell - 1) * size, 3.0e38)
    after = tl.where(cell < SIDE - 2, (cell + 2) * size - offset, 3.0e38)
    return tl.minimum(before, after)


@triton.jit
def _three(
    points_of,
    low,
    side,
    starts,
    sorted_points,
    sorted_axes,
    index,
    squares,
    points,
    count,
    total,
    SMALL: tl.constexpr,
    LARGE: tl.constexpr,
    STEP: tl.constexpr,
):
    point = tl.program_id(0).to(tl.int64)
    cloud = point // points
    x = tl.load(points_of + point * 3)
    y = tl.load(points_of + point * 3 + 1)
    z = tl.load(points_of + point * 3 + 2)
    gx, gy, gz, lx, ly, lz, size = _home(x, y, z, low, side, cloud)
    far = tl.full((STEP,), FAR, dtype=tl.int64)
    code0, code1, code2 = far, far, far
    for column in range(9):
        first, last = _range(starts, cloud, gx, gy, gz, column)
        code0, code1, code2 = _keep(
            x, y, z, sorted_axes, sorted_points, first, last, total, code0, code1, code2, STEP
        )
    nearest, code0, code1, code2 = _pop(code0, code1, code2)
    second, code0, code1, code2 = _pop(code0, code1, code2)
    third, code0, code1, code2 = _pop(code0, code1, code2)
    reach = tl.minimum(_to_border(x, lx, size, gx), _to_border(y, ly, size, gy))
    reach = tl.minimum(reach, _to_border(z, lz, size, gz)) * REACH - (1 - REACH) * size
    if (_distance(third) > reach * reach) | (reach <= 0.0):  # nearer ones may lie beyond
        code0, code1, code2 = _keep(
            x, y, z, sorted_axes, sorted_points, (cloud * count).to(tl.int32),
            (cloud * count + count).to(tl.int32), total, far, far, far, STEP,
        )  # fmt: skip
        nearest, code0, code1, code2 = _pop(code0, code1, code2)
        second, code0, code1, code2 = _pop(code0, code1, code2)
        third, code0, code1, code2 = _pop(code0, code1, code2)
    tl.store(index + point * 3, nearest.to(tl.int32))
    tl.store(index + point * 3 + 1, second.to(tl.int32))
    tl.store(index + point * 3 + 2, third.to(tl.int32))
    tl.store(squares + point * 3, tl.minimum(tl.maximum(_distance(nearest), SMALL), LARGE))
    tl.store(squares + point * 3 + 1, tl.minimum(tl.maximum(_distance(second), SMALL), LARGE))
    tl.store(squares + point * 3 + 2, tl.minimum(tl.maximum(_distance(third), SMALL), LARGE))


@torch.library.custom_op("overt::three_nearest_in_cells", mutates_args=())
def three_nearest_in_cells(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """See `three_nearest`; indices, and squared distances within their bounds."""
    batch, count, _ = points.shape
    index = torch.empty((batch, count, 3), dtype=torch.int32, device=points.device)
    squares = torch.empty((batch, count, 3), dtype=torch.float32, device=points.device)
    _three[(batch * count,)](
        points.float().contiguous(),
        *sort_into_cells(centers),
        index,
        squares,
        count,
        centers.shape[1],
        batch * centers.shape[1],
        SMALL=SMALLEST,
        LARGE=LARGEST,
        STEP=STEP,
        num_warps=1,
        enable_fp_fusion=False,
    )
    return index, squares


three_nearest_in_cells.register_fake(three_nearest_shapes)
