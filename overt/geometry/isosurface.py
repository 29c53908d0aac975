"""Closed surfaces of volumes by marching cubes, with shared vertices, for printing.

Never imports torch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.geometry.voxels import Mask

# Corner c of a cube has the bits x, y, z; an edge joins two corners that differ in one bit.
CORNERS = np.array([[c & 1, c >> 1 & 1, c >> 2 & 1] for c in range(8)])
EDGES = [(a, a | bit) for a in range(8) for bit in (1, 2, 4) if not a & bit]
SMOOTHING = 0.5  # voxels: the steps of a mask vanish, its edges are rounded by less than a voxel

Points = NDArray[np.floating[Any]]
Faces = NDArray[np.int64]


def loops_of(inside: int) -> list[list[int]]:
    """Return the closed loops of cut edges of a cube whose inner corners are the bits of `inside`.

    Where a face has two inner corners across, they are kept apart, on both sides of it alike.
    """
    links: dict[int, list[int]] = {}
    for axis in range(3):
        for side in (0, 1):
            face = [c for c in range(8) if (c >> axis & 1) == side]
            cut = [
                index
                for index, (a, b) in enumerate(EDGES)
                if a in face and b in face and (inside >> a & 1) != (inside >> b & 1)
            ]
            lines = [cut]
            if len(cut) == 4:
                inner = [c for c in face if inside >> c & 1]
                lines = [[edge for edge in cut if corner in EDGES[edge]] for corner in inner]
            for first, second in filter(None, lines):
                links.setdefault(first, []).append(second)
                links.setdefault(second, []).append(first)
    loops = []
    while links:
        # Each cut edge has two lines, one on each of its faces: they close to loops.
        loop = [next(iter(links))]
        while links.get(loop[-1]):
            following = links[loop[-1]].pop()
            links[following].remove(loop[-1])
            loop.append(following)
        for edge in set(loop):
            if not links[edge]:
                del links[edge]
        loops.append(loop[:-1])
    return loops


@cache
def _oriented_cases() -> list[list[tuple[int, int, int]]]:
    """Return the triangles of each of the 256 cubes, counter-clockwise seen from outside."""
    cases = []
    for inside in range(256):
        triangles = []
        for loop in loops_of(inside):
            ends = np.array([EDGES[edge] for edge in loop])
            inner = np.where(inside >> ends & 1, ends, ends[:, ::-1])[:, 0]
            outward = (CORNERS[ends].sum(axis=1) - 2 * CORNERS[inner]).sum(axis=0)
            middles = CORNERS[ends].mean(axis=1)
            normal = sum(
                np.cross(middles[k] - middles[0], middles[k + 1] - middles[0])
                for k in range(1, len(loop) - 1)
            )
            ordered = loop if np.dot(normal, outward) > 0 else loop[::-1]
            triangles += [(ordered[0], ordered[k], ordered[k + 1]) for k in range(1, len(loop) - 1)]
        cases.append(triangles)
    return cases


def isosurface(field: NDArray[np.floating[Any]], level: float) -> tuple[Points, Faces]:
    """Return the closed surface where a field falls below a level, in voxels.

    Outside the volume the field counts as lower: what touches the volume's face is closed there.
    """
    field = np.pad(np.asarray(field, dtype=np.float32), 1, constant_values=np.float32(level - 1))
    inside = field > level
    shape = tuple(size - 1 for size in field.shape)
    codes = np.zeros(shape, dtype=np.uint8)
    for corner, (x, y, z) in enumerate(CORNERS):
        part = inside[x : x + shape[0], y : y + shape[1], z : z + shape[2]]
        codes |= part.astype(np.uint8) << np.uint8(corner)
    cubes = np.argwhere((codes != 0) & (codes != 255))
    kinds = codes[tuple(cubes.T)]
    strides = np.array([field.shape[1] * field.shape[2], field.shape[2], 1])
    edge_keys = []  # of each corner of each triangle: the lower end of a cut edge, and its axis
    for kind in np.unique(kinds):
        triangles = np.array(_oriented_cases()[kind])  # (t, 3)
        lower = CORNERS[[[EDGES[edge][0] for edge in row] for row in triangles]]  # (t, 3, 3)
        axis = [[(a ^ b).bit_length() - 1 for a, b in (EDGES[e] for e in row)] for row in triangles]
        flat = (cubes[kinds == kind][:, None, None] + lower) @ strides
        edge_keys.append((3 * flat + np.array(axis)).reshape(-1, 3))
    if not edge_keys:
        return np.zeros((0, 3)), np.zeros((0, 3), dtype=np.int64)
    keys, faces = np.unique(np.concatenate(edge_keys), return_inverse=True)
    low = np.stack(np.unravel_index(keys // 3, field.shape), axis=1)
    high = low + np.eye(3, dtype=np.int64)[keys % 3]
    first, second = field[tuple(low.T)], field[tuple(high.T)]
    # Never on a voxel itself: there several edges would meet in one point.
    fraction = np.clip((level - first) / (second - first), 0.05, 0.95)
    return low + fraction[:, None] * (high - low) - 1.0, faces.reshape(-1, 3)


def mask_surface(mask: Mask, smoothing: float = SMOOTHING) -> tuple[Points, Faces]:
    """Return the smooth closed surface of a mask, in voxels; without SciPy it is not smoothed."""
    from overt.geometry.voxels import HAS_SCIPY, bounding_box

    if not mask.any():
        return np.zeros((0, 3)), np.zeros((0, 3), dtype=np.int64)
    box = bounding_box(mask, (4, 4, 4))
    field = np.pad(mask[box].astype(np.float32), 4)
    if HAS_SCIPY and smoothing > 0:
        from scipy.ndimage import gaussian_filter

        field = gaussian_filter(field, smoothing)
    vertices, faces = isosurface(field, 0.5)
    return vertices + [part.start - 4 for part in box], faces


def enclosed_volume(vertices: Points, faces: Faces) -> float:
    """Return the volume inside a closed surface; negative where it is inside out."""
    a, b, c = (vertices[faces[:, corner]] for corner in range(3))
    return float((a * np.cross(b, c)).sum() / 6)


def open_edges(faces: Faces) -> int:
    """Count the edges that do not have one face on each side: 0 for a watertight surface."""
    if not len(faces):
        return 0
    count = int(faces.max()) + 1
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    forward, times = np.unique(edges[:, 0] * count + edges[:, 1], return_counts=True)
    backward = np.unique(edges[:, 1] * count + edges[:, 0])
    return len(np.setxor1d(forward, backward)) + int((times > 1).sum())
