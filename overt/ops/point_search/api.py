"""Which points: furthest-point sampling, ball query, three nearest centers. Indices, no gradients.

Letters: B clouds, N points, M centers, U slots of a neighborhood. Coordinates are (B, N, 3)
float32. The plain functions are the definition, for any device; on CUDA the Triton twins make the
same choices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overt.ops.dispatch import use_kernels
from overt.ops.point_search.plain import (
    ball_query_plain,
    furthest_point_sample_plain,
    three_nearest_plain,
)

# Pairs of a center and a point in a cloud from which sorting into cells pays for itself.
MANY_PAIRS = 2**26


def furthest_point_sample(
    coords: Tensor,  # (B, N, 3)
    count: int,
) -> Tensor:
    """Point 0, then again and again the point furthest from all picked so far: (B, count) int32.

    Once every point is picked, point 0 is picked again.
    """
    if not use_kernels("point_search", coords):
        return furthest_point_sample_plain(coords, count)
    from overt.ops.point_search.furthest_kernels import furthest_point_sample_fused

    picks: Tensor = furthest_point_sample_fused(coords, count)
    return picks


def ball_query(
    centers: Tensor,  # (B, M, 3)
    points: Tensor,  # (B, N, 3)
    radius: float,
    slots: int,
) -> tuple[Tensor, Tensor]:
    """The first `slots` points nearer than the radius, by index: (B, M, U) and how many, (B, M).

    Unused slots repeat the first hit; without any hit they hold point 0. Both are int32.
    """
    if not use_kernels("point_search", points):
        return ball_query_plain(centers, points, radius, slots)
    if centers.shape[1] * points.shape[1] >= MANY_PAIRS:
        from overt.ops.point_search.cell_kernels import ball_query_in_cells as search
    else:
        from overt.ops.point_search.kernels import ball_query_fused as search
    index, hits = search(centers, points, radius, slots)
    return index, hits


def three_nearest(
    points: Tensor,  # (B, N, 3)
    centers: Tensor,  # (B, M, 3)
) -> tuple[Tensor, Tensor]:
    """The three nearest centers of every point, (B, N, 3) int32, and interpolation weights.

    Weights go with one over the squared distance and add up to 1. Of equally near centers the
    earlier comes first; a center that does not exist is center 0, very far away.
    """
    if use_kernels("point_search", points):
        if centers.shape[1] * points.shape[1] >= MANY_PAIRS:
            from overt.ops.point_search.cell_kernels import three_nearest_in_cells as search
        else:
            from overt.ops.point_search.kernels import three_nearest_fused as search
        index, squares = search(points, centers)
    else:
        index, squares = three_nearest_plain(points, centers)
    first, second, third = squares.double().unbind(2)
    products = torch.stack([second * third, first * third, first * second], dim=2).float()
    return index, products / products.sum(2, keepdim=True)
