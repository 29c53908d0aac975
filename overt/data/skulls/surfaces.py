"""Sample points on the surface of a binary volume: marching cubes, then evenly spaced samples.

Coordinates are in voxels. Never imports torch.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError
from overt.geometry.isosurface import CORNERS, EDGES, loops_of
from overt.geometry.voxels import bounding_box

CANDIDATES = 5  # points thrown for each point wanted
FILL = 0.42  # of the area: the squares of the radius, all points together

Triangles = NDArray[np.float64]  # (triangles, 3 corners, 3)
Points = NDArray[np.float64]  # (points, 3)


@cache
def _cases() -> list[list[tuple[int, int, int]]]:
    """Return for each of the 256 cubes the triangles between its cut edges."""
    return [_triangles(inside) for inside in range(256)]


def _triangles(inside: int) -> list[tuple[int, int, int]]:
    return [
        (loop[0], loop[k], loop[k + 1])
        for loop in loops_of(inside)
        for k in range(1, len(loop) - 1)
    ]


def surface_triangles(mask: NDArray[np.bool_]) -> Triangles:
    """Run marching cubes on a binary volume at the value 0: corners are on voxels just outside.

    A mask at the face of the volume is open there.
    """
    if not mask.any():
        return np.zeros((0, 3, 3))
    box = bounding_box(mask, (1, 1, 1))  # most of a volume is empty
    first = [part.start for part in box]
    mask = mask[box]
    codes = np.zeros(tuple(size - 1 for size in mask.shape), dtype=np.uint8)
    for corner, (x, y, z) in enumerate(CORNERS):
        part = mask[x : mask.shape[0] - 1 + x, y : mask.shape[1] - 1 + y, z : mask.shape[2] - 1 + z]
        codes |= part.astype(np.uint8) << np.uint8(corner)
    cubes = np.argwhere((codes != 0) & (codes != 255))
    kinds = codes[tuple(cubes.T)]
    cubes += first
    parts = []
    for kind in np.unique(kinds):
        triangles = _cases()[kind]
        if not triangles:
            continue
        outer = [a if not kind >> a & 1 else b for a, b in EDGES]
        corners = CORNERS[[[outer[edge] for edge in triangle] for triangle in triangles]]
        corner_indices = cubes[kinds == kind]
        parts.append((corner_indices[:, None, None] + corners).reshape(-1, 3, 3))
    return np.concatenate(parts).astype(np.float64) if parts else np.zeros((0, 3, 3))


def scatter_on_surface(triangles: Triangles, count: int, rng: np.random.Generator) -> Points:
    """Return `count` independent points on the triangles, uniform over their area, (count, 3)."""
    sides = triangles[:, 1:] - triangles[:, :1]
    areas = np.linalg.norm(np.cross(sides[:, 0], sides[:, 1]), axis=1) / 2
    total = float(areas.sum())
    if total <= 0:
        raise DataError("a surface without area cannot be sampled")
    chosen = rng.choice(len(areas), count, p=areas / total)
    u, v = rng.random((2, len(chosen), 1))
    folded = u + v > 1
    u, v = np.where(folded, 1 - u, u), np.where(folded, 1 - v, v)
    return np.asarray(triangles[chosen, 0] + u * sides[chosen, 0] + v * sides[chosen, 1])


def sample_surface(triangles: Triangles, count: int, rng: np.random.Generator) -> Points:
    """Return `count` points (count, 3) on the triangles with a minimum distance."""
    candidates = scatter_on_surface(triangles, CANDIDATES * count, rng)
    sides = triangles[:, 1:] - triangles[:, :1]
    total = float(np.linalg.norm(np.cross(sides[:, 0], sides[:, 1]), axis=1).sum()) / 2
    radius = float(np.sqrt(FILL * total / count))
    while True:
        kept = candidates[thin_out(candidates, radius)]
        if len(kept) >= count:
            chosen = rng.permutation(len(kept))[:count]
            return np.asarray(kept[chosen], dtype=np.float64)
        radius *= 0.95


def thin_out(points: Points, radius: float) -> NDArray[np.bool_]:
    """Keep the first point, and each later one that has no kept point within the radius."""
    first, second = close_pairs(points, radius)
    kept = np.zeros(len(points), dtype=bool)
    open_ = np.ones(len(points), dtype=bool)
    while len(first):
        # A point is kept if no earlier undecided point is near it; later points near it are
        # dropped.
        hindered = np.zeros(len(points), dtype=bool)
        hindered[second] = True
        kept |= open_ & ~hindered
        open_ &= hindered
        open_[second[kept[first]]] = False
        alive = open_[first] & open_[second]
        first, second = first[alive], second[alive]
    return kept | open_


def close_pairs(points: Points, radius: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all pairs closer than the radius, the earlier point first."""
    cells = np.floor((points - points.min(axis=0)) / radius).astype(np.int64) + 1
    sizes = cells.max(axis=0) + 2
    steps = np.array([sizes[1] * sizes[2], sizes[2], 1])
    keys = cells @ steps
    order = np.argsort(keys, kind="stable")
    occupied, starts, counts = np.unique(keys[order], return_index=True, return_counts=True)
    pairs = []
    for offset in np.ndindex(3, 3, 3):
        shift = int((np.array(offset) - 1) @ steps)
        if shift < 0:
            continue  # the other of two cells sees the pair
        neighbor = np.searchsorted(occupied, occupied + shift)
        neighbor = np.minimum(neighbor, len(occupied) - 1)
        cell = np.flatnonzero(occupied[neighbor] == occupied + shift)
        neighbor_cell = neighbor[cell]
        lengths = counts[cell] * counts[neighbor_cell]
        rank = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
        width = np.repeat(counts[neighbor_cell], lengths)
        first_point = order[np.repeat(starts[cell], lengths) + rank // width]
        second_point = order[np.repeat(starts[neighbor_cell], lengths) + rank % width]
        near = ((points[first_point] - points[second_point]) ** 2).sum(axis=1) < radius**2
        near &= first_point < second_point if shift == 0 else True
        pairs.append(np.sort(np.stack([first_point[near], second_point[near]]), axis=0))
    first, second = np.concatenate(pairs, axis=1)
    return first, second
