"""Triton kernels of the nearest face of each pixel.

The first draws all faces: each pixel of a face lowers the pixel's key, depth above face number, by
an atomic minimum. The second reads the keys and computes the weights of the faces that are left.
Multiplications and additions are not fused, so that both compute what the definition computes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overt.ops.raster.plain import NEAR_M, SMALLEST_AREA, SMALLEST_INVERSE

FACES = 64  # of a program, one for each thread; most of a body's cover two pixels or none
PIXELS = 4  # of each face at a time
SMALL = 64  # pixels of a box; larger ones are drawn one after the other by the whole program
BLOCK = 256  # pixels of a program that reads keys
WARPS = 2
EMPTY = 2**63 - 1  # the key of a pixel without a face


@triton.jit
def _corner(pixels, depth, faces, mesh, vertices, real):
    """Column, row and depth of one corner."""
    vertex = mesh * vertices + tl.load(faces, mask=real, other=0)
    x = tl.load(pixels + 2 * vertex, mask=real, other=0.0)
    y = tl.load(pixels + 2 * vertex + 1, mask=real, other=0.0)
    return x, y, tl.load(depth + vertex, mask=real, other=1.0)


@triton.jit
def _corners(pixels, depth, faces, mesh, face, vertices, real):
    """Column, row and depth of the corners of faces, of any shape."""
    ax, ay, az = _corner(pixels, depth, faces + 3 * face, mesh, vertices, real)
    bx, by, bz = _corner(pixels, depth, faces + 3 * face + 1, mesh, vertices, real)
    cx, cy, cz = _corner(pixels, depth, faces + 3 * face + 2, mesh, vertices, real)
    return ax, ay, az, bx, by, bz, cx, cy, cz


@triton.jit
def _span(a, b, c, limit):
    """The first pixel and the number of pixels of a box along one axis."""
    low, high = tl.minimum(tl.minimum(a, b), c), tl.maximum(tl.maximum(a, b), c)
    first = tl.minimum(tl.maximum(tl.ceil(low), 0.0), limit).to(tl.int32)
    last = tl.minimum(tl.maximum(tl.floor(high), -1.0), limit - 1.0).to(tl.int32)
    return first, tl.maximum(last - first + 1, 0)


@triton.jit
def _area(ax, ay, bx, by, cx, cy):
    return (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)


@triton.jit
def _weigh(
    ax, ay, az, bx, by, bz, cx, cy, cz, x, y, SMALLEST: tl.constexpr, PERSPECTIVE: tl.constexpr
):  # fmt: skip
    """Weights of the corners at pixels, their depth there, and whether the pixels are inside."""
    area = _area(ax, ay, bx, by, cx, cy)
    first = tl.div_rn(_area(x, y, bx, by, cx, cy), area)
    second = tl.div_rn(_area(ax, ay, x, y, cx, cy), area)
    third = tl.div_rn(_area(ax, ay, bx, by, x, y), area)
    inside = (first >= 0) & (second >= 0) & (third >= 0)
    if PERSPECTIVE:
        first, second, third = tl.div_rn(first, az), tl.div_rn(second, bz), tl.div_rn(third, cz)
        total = tl.maximum(first + second + third, SMALLEST)
        depth = tl.div_rn(1.0, total)
        first = tl.div_rn(first, total)
        second = tl.div_rn(second, total)
        third = tl.div_rn(third, total)
    else:
        depth = first * az + second * bz + third * cz
    return first, second, third, depth, inside


@triton.jit
def _lower(
    keys, face, ax, ay, az, bx, by, bz, cx, cy, cz, left, top, across, size, index, width,
    SMALLEST: tl.constexpr, PERSPECTIVE: tl.constexpr,
):  # fmt: skip
    """Draw pixels of boxes, counted row by row."""
    across = tl.maximum(across, 1)
    row, column = top + index // across, left + index % across
    x, y = column.to(tl.float32), row.to(tl.float32)
    _, _, _, depth, inside = _weigh(
        ax, ay, az, bx, by, bz, cx, cy, cz, x, y, SMALLEST, PERSPECTIVE
    )  # fmt: skip
    # Depth is positive: its bits are ordered as it is. Of equal depths the highest face is left.
    key = (depth.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (2147483647 - face).to(tl.int64)
    tl.atomic_min(keys + row * width + column, key, mask=inside & (index < size), sem="relaxed")


@triton.jit
def _lower_all(
    pixels, depth, faces, keys, number, count, vertices, height, width,
    SMALLEST: tl.constexpr, PERSPECTIVE: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Draw all pixels of one face."""
    mesh = (number // count).to(tl.int64)
    face = number % count
    ax, ay, az, bx, by, bz, cx, cy, cz = _corners(pixels, depth, faces, mesh, face, vertices, True)
    left, across = _span(ax, bx, cx, width)
    top, down = _span(ay, by, cy, height)
    for start in range(0, across * down, PIXELS):
        _lower(
            keys + mesh * height * width, face, ax, ay, az, bx, by, bz, cx, cy, cz, left, top,
            across, across * down, start + tl.arange(0, PIXELS), width, SMALLEST, PERSPECTIVE,
        )  # fmt: skip


@triton.jit
def _draw(
    pixels, depth, faces, keys, count, total, vertices, height, width, near,
    AREA: tl.constexpr, SMALLEST: tl.constexpr, PERSPECTIVE: tl.constexpr, FACES: tl.constexpr,
    PIXELS: tl.constexpr, SMALL: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, FACES)[:, None]
    number = tl.program_id(0) * FACES + lane
    real = number < total
    mesh = (number // count).to(tl.int64)
    face = number % count
    ax, ay, az, bx, by, bz, cx, cy, cz = _corners(pixels, depth, faces, mesh, face, vertices, real)
    left, across = _span(ax, bx, cx, width)
    top, down = _span(ay, by, cy, height)
    # One by one: a minimum would ignore a corner whose depth is NaN.
    drawn = real & (az > near) & (bz > near) & (cz > near)
    drawn = drawn & (_area(ax, ay, bx, by, cx, cy) <= -AREA)
    size = tl.where(drawn, across * down, 0)
    small = tl.where(size <= SMALL, size, 0)
    for start in range(0, tl.max(small), PIXELS):
        _lower(
            keys + mesh * height * width, face, ax, ay, az, bx, by, bz, cx, cy, cz, left, top,
            across, small, start + tl.arange(0, PIXELS)[None, :], width, SMALLEST, PERSPECTIVE,
        )  # fmt: skip
    is_large = size > SMALL
    last = tl.full((), -1, tl.int32)
    for _ in range(tl.sum(is_large.to(tl.int32))):
        last = tl.min(tl.where(is_large & (lane > last), lane, FACES))
        _lower_all(
            pixels, depth, faces, keys, tl.program_id(0) * FACES + last, count, vertices, height,
            width, SMALLEST, PERSPECTIVE, FACES * PIXELS,
        )  # fmt: skip


@triton.jit
def _read(
    pixels, depth, faces, keys, nearest, winner, weights, count, total, vertices, height, width,
    SMALLEST: tl.constexpr, PERSPECTIVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = pixel < total
    key = tl.load(keys + pixel, mask=exists, other=0)
    bits = (key >> 32).to(tl.int32)
    has = exists & (bits != 2147483647)
    face = tl.where(has, 2147483647 - (key & 2147483647), 0)
    ax, ay, az, bx, by, bz, cx, cy, cz = _corners(
        pixels, depth, faces, pixel // (height * width), face, vertices, has
    )
    x = (pixel % width).to(tl.float32)
    y = (pixel // width % height).to(tl.float32)
    first, second, third, _, _ = _weigh(
        ax, ay, az, bx, by, bz, cx, cy, cz, x, y, SMALLEST, PERSPECTIVE
    )  # fmt: skip
    distance = tl.where(has, bits.to(tl.float32, bitcast=True), float("inf"))
    tl.store(nearest + pixel, distance, mask=exists)
    tl.store(winner + pixel, tl.where(has, face, -1), mask=exists)
    tl.store(weights + 3 * pixel, tl.where(has, first, 0.0), mask=exists)
    tl.store(weights + 3 * pixel + 1, tl.where(has, second, 0.0), mask=exists)
    tl.store(weights + 3 * pixel + 2, tl.where(has, third, 0.0), mask=exists)


@torch.library.custom_op("overt::nearest_faces", mutates_args=())
def nearest_faces_fused(
    pixels: Tensor, depth: Tensor, faces: Tensor, height: int, width: int, perspective: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """See `nearest_faces`."""
    batch, vertices = depth.shape
    count, shape = len(faces), (batch, height, width)
    mesh = (pixels.contiguous(), depth.contiguous(), faces.contiguous())
    nearest, weights = pixels.new_empty(shape), pixels.new_empty(*shape, 3)
    winner = torch.empty(shape, dtype=torch.int64, device=pixels.device)
    keys = torch.full(shape, EMPTY, dtype=torch.int64, device=pixels.device)
    _draw[(triton.cdiv(batch * count, FACES),)](
        *mesh, keys, count, batch * count, vertices, height, width, NEAR_M,
        AREA=SMALLEST_AREA, SMALLEST=SMALLEST_INVERSE, PERSPECTIVE=perspective, FACES=FACES,
        PIXELS=PIXELS, SMALL=SMALL, num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    _read[(triton.cdiv(keys.numel(), BLOCK),)](
        *mesh, keys, nearest, winner, weights, count, keys.numel(), vertices, height, width,
        SMALLEST=SMALLEST_INVERSE, PERSPECTIVE=perspective, BLOCK=BLOCK, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    return nearest, winner, weights


@nearest_faces_fused.register_fake
def _(
    pixels: Tensor, depth: Tensor, faces: Tensor, height: int, width: int, perspective: bool
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (len(pixels), height, width)
    face = pixels.new_empty(shape, dtype=torch.int64)
    return pixels.new_empty(shape), face, pixels.new_empty(*shape, 3)
