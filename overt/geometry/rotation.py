"""Rotations as axis-angle vectors, quaternions, matrices and six numbers; angles between them.

All functions take any leading dimensions and have finite gradients everywhere, zero included.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Below this angle sine and cosine quotients come from their series: no 0 / 0, no lost digits.
_SMALL = 1e-2
# Beyond this cosine the arc cosine continues as its tangent: its own slope is infinite at 1.
_TANGENT_FROM = 1.0 - 1e-4


def rotate(matrices: Tensor, vectors: Tensor) -> Tensor:  # (..., 3, 3), (..., 3) to (..., 3)
    """Products of many small matrices and vectors; on a GPU a matrix product of these is slow."""
    return (matrices * vectors[..., None, :]).sum(-1)


def compose(first: Tensor, second: Tensor) -> Tensor:  # (..., 3, 3) twice to (..., 3, 3)
    """Products of small matrices; see `rotate`."""
    return (first[..., None] * second[..., None, :, :]).sum(-2)


def axis_angle_to_matrix(vectors: Tensor) -> Tensor:  # (..., 3) to (..., 3, 3)
    """Rotation by |vector| about the vector's direction (Rodrigues)."""
    squared = vectors.square().sum(-1)[..., None, None]
    is_small = squared < _SMALL**2
    safe = torch.where(is_small, torch.ones_like(squared), squared)
    angle = safe.sqrt()
    first = torch.where(
        is_small, 1.0 - squared / 6.0 + squared.square() / 120.0, angle.sin() / angle
    )
    # 1 - cos as twice a squared sine: no digits cancel.
    second = torch.where(
        is_small,
        0.5 - squared / 24.0 + squared.square() / 720.0,
        2.0 * (0.5 * angle).sin().square() / safe,
    )
    cross = skew(vectors)
    eye = torch.eye(3, dtype=vectors.dtype, device=vectors.device)
    return eye + first * cross + second * compose(cross, cross)


def skew(vectors: Tensor) -> Tensor:  # (..., 3) to (..., 3, 3)
    """The matrix that multiplies as the cross product with the vector."""
    x, y, z = vectors.unbind(-1)
    zero = torch.zeros_like(x)
    rows = [zero, -z, y, z, zero, -x, -y, x, zero]
    return torch.unflatten(torch.stack(rows, dim=-1), -1, (3, 3))


def six_to_matrix(numbers: Tensor) -> Tensor:  # (..., 6) to (..., 3, 3)
    """Gram-Schmidt on six numbers that are a 3 x 2 matrix, row by row (arXiv:1812.07035)."""
    columns = torch.unflatten(numbers, -1, (3, 2))
    first = F.normalize(columns[..., 0], dim=-1)
    second = columns[..., 1]
    second = F.normalize(second - (first * second).sum(-1, keepdim=True) * first, dim=-1)
    return torch.stack([first, second, torch.linalg.cross(first, second)], dim=-1)


def matrix_to_six(matrices: Tensor) -> Tensor:  # (..., 3, 3) to (..., 6)
    """The first two columns, row by row: what `six_to_matrix` takes."""
    return matrices[..., :2].flatten(-2)


def matrix_to_quaternion(matrices: Tensor) -> Tensor:  # (..., 3, 3) to (..., 4)
    """The unit quaternion, real part first and never negative."""
    m00, m01, m02, m10, m11, m12, m20, m21, m22 = matrices.flatten(-2).unbind(-1)
    # Twice the size of each of the four numbers; the largest is safe to divide by.
    squares = torch.stack(
        [1 + m00 + m11 + m22, 1 + m00 - m11 - m22, 1 - m00 + m11 - m22, 1 - m00 - m11 + m22], -1
    )
    sizes = torch.where(squares > 0, squares.clamp_min(1e-12), 1e-12).sqrt()
    candidates = torch.stack(
        [
            torch.stack([squares[..., 0], m21 - m12, m02 - m20, m10 - m01], -1),
            torch.stack([m21 - m12, squares[..., 1], m10 + m01, m02 + m20], -1),
            torch.stack([m02 - m20, m10 + m01, squares[..., 2], m12 + m21], -1),
            torch.stack([m10 - m01, m20 + m02, m21 + m12, squares[..., 3]], -1),
        ],
        dim=-2,
    )  # (..., 4, 4)
    quaternions = candidates / (2.0 * sizes[..., None].clamp_min(0.1))
    best = squares.argmax(-1)[..., None, None].expand(*squares.shape[:-1], 1, 4)
    chosen = quaternions.gather(-2, best).squeeze(-2)
    return torch.where(chosen[..., :1] < 0, -chosen, chosen)


def matrix_to_axis_angle(matrices: Tensor) -> Tensor:  # (..., 3, 3) to (..., 3)
    """The vector of length at most pi that makes this rotation."""
    quaternion = matrix_to_quaternion(matrices)
    real, imaginary = quaternion[..., :1], quaternion[..., 1:]
    squared = imaginary.square().sum(-1, keepdim=True)
    is_small = squared < _SMALL**2
    sine = torch.where(is_small, torch.ones_like(squared), squared).sqrt()
    factor = torch.where(is_small, 2.0 + squared / 3.0, 2.0 * torch.atan2(sine, real) / sine)
    return imaginary * factor


def relative_angle(first: Tensor, second: Tensor) -> Tensor:  # (..., 3, 3) twice to (...)
    """The angle of the rotation between two; equal ones give 0.00707, the tangent's value there."""
    trace = (first * second).sum((-1, -2))
    return _arc_cosine(0.5 * (trace - 1.0))


def _arc_cosine(cosine: Tensor) -> Tensor:
    # Filled on the device: a copy from the host would wait, and cannot be part of a CUDA graph.
    bound = torch.full((), _TANGENT_FROM, dtype=cosine.dtype, device=cosine.device)
    inside = cosine.clamp(-bound, bound)
    slope = -1.0 / (1.0 - bound.square()).sqrt()
    return torch.acos(inside) + slope * (cosine - inside)


def rotation_about_z(radians: Tensor) -> Tensor:  # (...) to (..., 3, 3)
    """A rotation in the plane of the picture."""
    zero = torch.zeros_like(radians)
    return axis_angle_to_matrix(torch.stack([zero, zero, radians], dim=-1))
