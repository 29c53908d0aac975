"""Triton kernels of the coverage of pixels by faces: one program for each face.

It walks over the pixels of the face's box. Forward it adds to them; backward it reads what arrived
there and adds up the gradient of the three corners of the face, so that nothing is shared.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 32  # pixels at a time; a face of a body has about twenty


@triton.jit
def _read(corners, growth, limit):
    """One coordinate of three corners; the first pixel and the number of pixels of the box."""
    a, b, c = tl.load(corners), tl.load(corners + 2), tl.load(corners + 4)
    low, high = tl.minimum(tl.minimum(a, b), c), tl.maximum(tl.maximum(a, b), c)
    first = tl.minimum(tl.maximum(tl.ceil(low - growth), 0.0), limit).to(tl.int32)
    last = tl.minimum(tl.maximum(tl.floor(high + growth), -1.0), limit - 1.0).to(tl.int32)
    return a, b, c, first, tl.maximum(last - first + 1, 0)


@triton.jit
def _edge(x, y, ax, ay, bx, by):
    """Square of the distance from an edge, the vector from it, the fraction along it, the side."""
    edge_x, edge_y = bx - ax, by - ay
    offset_x, offset_y = x - ax, y - ay
    squared = tl.maximum(edge_x * edge_x + edge_y * edge_y, 1e-12)
    along = (offset_x * edge_x + offset_y * edge_y) / squared
    along = tl.minimum(tl.maximum(along, 0.0), 1.0)
    beside_x, beside_y = offset_x - along * edge_x, offset_y - along * edge_y
    side = edge_x * offset_y - edge_y * offset_x
    return beside_x * beside_x + beside_y * beside_y, beside_x, beside_y, along, side


@triton.jit
def _is_inside(first, second, third):
    """Whether a pixel is on the same side of all edges."""
    left = (first >= 0) & (second >= 0) & (third >= 0)
    return left | ((first <= 0) & (second <= 0) & (third <= 0))


@triton.jit
def _forward(
    corners, drawn, total, faces, height, width, softness, growth, SIZE: tl.constexpr
):  # fmt: skip
    face = tl.program_id(0)
    if tl.load(drawn + face) != 0:
        ax, bx, cx, left, across = _read(corners + 6 * face, growth, width)
        ay, by, cy, top, down = _read(corners + 6 * face + 1, growth, height)
        picture = (face // faces).to(tl.int64) * height * width
        for start in range(0, across * down, SIZE):
            number = start + tl.arange(0, SIZE)
            real = number < across * down
            row, column = top + number // across, left + number % across
            x, y = column.to(tl.float32), row.to(tl.float32)
            first, _, _, _, side_a = _edge(x, y, ax, ay, bx, by)
            second, _, _, _, side_b = _edge(x, y, bx, by, cx, cy)
            third, _, _, _, side_c = _edge(x, y, cx, cy, ax, ay)
            inside = _is_inside(side_a, side_b, side_c)
            distance = tl.sqrt(tl.minimum(tl.minimum(first, second), third) + 1e-8)
            depth = tl.where(inside, distance, -distance) / softness
            uncovered = -(tl.maximum(depth, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(depth))))
            tl.atomic_add(total + picture + row * width + column, uncovered, mask=real)


@triton.jit
def _backward(
    corners, drawn, gradient, result, faces, height, width, softness, growth, SIZE: tl.constexpr
):  # fmt: skip
    face = tl.program_id(0)
    zero = tl.zeros((SIZE,), tl.float32)
    to_ax, to_ay, to_bx, to_by, to_cx, to_cy = zero, zero, zero, zero, zero, zero
    if tl.load(drawn + face) != 0:
        ax, bx, cx, left, across = _read(corners + 6 * face, growth, width)
        ay, by, cy, top, down = _read(corners + 6 * face + 1, growth, height)
        picture = (face // faces).to(tl.int64) * height * width
        for start in range(0, across * down, SIZE):
            number = start + tl.arange(0, SIZE)
            real = number < across * down
            row, column = top + number // across, left + number % across
            x, y = column.to(tl.float32), row.to(tl.float32)
            first, first_x, first_y, first_t, side_a = _edge(x, y, ax, ay, bx, by)
            second, second_x, second_y, second_t, side_b = _edge(x, y, bx, by, cx, cy)
            third, third_x, third_y, third_t, side_c = _edge(x, y, cx, cy, ax, ay)
            inside = _is_inside(side_a, side_b, side_c)
            nearest = tl.minimum(tl.minimum(first, second), third)
            distance = tl.sqrt(nearest + 1e-8)
            depth = tl.where(inside, distance, -distance) / softness
            # Of the vector from the nearest edge: a corner moves it by its part of the edge.
            weight = tl.load(gradient + picture + row * width + column, mask=real, other=0.0)
            weight = weight * tl.sigmoid(depth) / softness / distance
            weight = tl.where(inside, weight, -weight)
            on_first = first <= nearest
            on_second = (second <= nearest) & (first > nearest)
            on_third = (first > nearest) & (second > nearest)
            first_w = tl.where(on_first, weight, 0.0)
            second_w = tl.where(on_second, weight, 0.0)
            third_w = tl.where(on_third, weight, 0.0)
            to_ax += first_w * first_x * (1 - first_t) + third_w * third_x * third_t
            to_ay += first_w * first_y * (1 - first_t) + third_w * third_y * third_t
            to_bx += second_w * second_x * (1 - second_t) + first_w * first_x * first_t
            to_by += second_w * second_y * (1 - second_t) + first_w * first_y * first_t
            to_cx += third_w * third_x * (1 - third_t) + second_w * second_x * second_t
            to_cy += third_w * third_y * (1 - third_t) + second_w * second_y * second_t
    tl.store(result + 6 * face, tl.sum(to_ax))
    tl.store(result + 6 * face + 1, tl.sum(to_ay))
    tl.store(result + 6 * face + 2, tl.sum(to_bx))
    tl.store(result + 6 * face + 3, tl.sum(to_by))
    tl.store(result + 6 * face + 4, tl.sum(to_cx))
    tl.store(result + 6 * face + 5, tl.sum(to_cy))


@torch.library.custom_op("overt::log_uncovered", mutates_args=())
def log_uncovered_fused(
    corners: Tensor, drawn: Tensor, height: int, width: int, softness: float, growth: float
) -> Tensor:
    """See `log_uncovered`."""
    batch, faces = drawn.shape
    total = corners.new_zeros(batch, height, width)
    _forward[(batch * faces,)](
        corners.contiguous(), drawn.contiguous().view(torch.uint8), total, faces, height, width,
        softness, growth, SIZE=SIZE, num_warps=1,
    )  # fmt: skip
    return total


@torch.library.custom_op("overt::log_uncovered_backward", mutates_args=())
def log_uncovered_backward(
    corners: Tensor, drawn: Tensor, gradient: Tensor, softness: float, growth: float
) -> Tensor:
    """Return the gradient of the corners."""
    batch, faces = drawn.shape
    height, width = gradient.shape[1:]
    result = torch.empty_like(corners, memory_format=torch.contiguous_format)
    _backward[(batch * faces,)](
        corners.contiguous(), drawn.contiguous().view(torch.uint8), gradient.contiguous(), result,
        faces, height, width, softness, growth, SIZE=SIZE, num_warps=1,
    )  # fmt: skip
    return result


@log_uncovered_fused.register_fake
def _(
    corners: Tensor, drawn: Tensor, height: int, width: int, softness: float, growth: float
) -> Tensor:
    return corners.new_empty(len(corners), height, width)


@log_uncovered_backward.register_fake
def _(corners: Tensor, drawn: Tensor, gradient: Tensor, softness: float, growth: float) -> Tensor:
    return torch.empty_like(corners, memory_format=torch.contiguous_format)


def _keep(ctx, inputs, output):
    corners, drawn, _, _, ctx.softness, ctx.growth = inputs
    ctx.save_for_backward(corners, drawn)


def _differentiate(ctx, gradient):
    corners, drawn = ctx.saved_tensors
    moved = log_uncovered_backward(corners, drawn, gradient, ctx.softness, ctx.growth)
    return moved, None, None, None, None, None


log_uncovered_fused.register_autograd(_differentiate, setup_context=_keep)
