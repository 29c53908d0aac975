"""The solid whose surface a cloud of points lies on, and the voxels inside a closed surface.

A ball is rolled around the points from outside: what it cannot enter is solid (an alpha shape). The
ball is larger than any wall and smaller than any cavity of a skull, so nothing depends on the
thickness of an implant. Letters: P points, V vertices, F faces. Never imports torch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError
from overt.geometry.voxels import Mask

logger = logging.getLogger(__name__)

Points = NDArray[np.floating[Any]]  # (P, 3)
Faces = NDArray[np.int64]  # (F, 3), counter-clockwise seen from outside

BALL_MM = 8.0  # radius; walls of up to 14 mm are filled, dents of a skull are not
_BALL_SPACINGS = 2.0  # the ball must not fall through between points of a sparse cloud
_NEIGHBOURS = 6
# Largest surface, estimated from the distances between points. With any number of points, true
# implants measure up to 450 cm². A ball as large as scattered points need fills the whole head.
LARGEST_CM2 = 1000.0
_SMOOTHED = 12  # nearest points that smoothing looks at
_SAME_SIDE = 0.9  # cosine between normals above which two points are on one side of an edge
# Points on marching cubes at level 0 are spread over one voxel outside the boundary: this is their
# mean distance from planes in all directions.
OUTSET = 0.48
# The corners of the facet opposite to each corner of a tetrahedron of positive volume, such that
# the facet's normal points out of it.
_FACETS = np.array([[1, 2, 3], [0, 3, 2], [0, 1, 3], [0, 2, 1]])


def solid_of_points(
    points: Points,  # (P, 3) in voxels
    shape: tuple[int, ...],
    spacing: Sequence[float],
    ball_mm: float = BALL_MM,
    outset: float = OUTSET,
    cloud_spacing: Sequence[float] | None = None,
) -> Mask:
    """Return the voxels of the solid whose surface the points lie on.

    `outset` says by how much of a voxel, along the axis of the largest normal component, the points
    are outside the boundary: clouds of marching cubes at level 0 lie on voxels just outside. Those
    voxels measure `cloud_spacing`, if not as much as the solid's.
    """
    solid = _find_solid(points, shape, spacing, ball_mm, outset, cloud_spacing)
    if solid is None:
        logger.warning(
            "%d points enclose no solid: they are too far apart (a surface above %.0f cm²) or in "
            "one plane. The model that sampled them may need more training.",
            len(points), LARGEST_CM2,
        )  # fmt: skip
        return np.zeros(shape, dtype=bool)
    return solid


def _find_solid(
    points: Points,
    shape: tuple[int, ...],
    spacing: Sequence[float],
    ball_mm: float,
    outset: float = OUTSET,
    cloud_spacing: Sequence[float] | None = None,
) -> Mask | None:
    """Return the solid of the points; None where they enclose none."""
    made_in = np.asarray(spacing if cloud_spacing is None else cloud_spacing)
    points_mm = points * np.asarray(spacing)
    vertices, faces = surface_of_points(points_mm, ball_mm)
    if not len(faces):
        return None
    vertices, faces = round_faces(smooth_sides(vertices, faces, points_mm), faces)
    inner = move_inwards(vertices / made_in, faces, outset)
    return solid_of_mesh(inner * (made_in / np.asarray(spacing)), faces, shape)


def solid_of_votes(
    clouds: NDArray[np.floating[Any]],  # (n, P, 3) in voxels
    occupied: Mask,
    spacing: Sequence[float],
    ball_mm: float = BALL_MM,
    cloud_spacing: Sequence[float] | None = None,
) -> Mask:
    """Return the voxels where at least half of the clouds are solid and nothing else is.

    Clouds that enclose no solid vote for empty, without a warning: callers have many of them.
    """
    votes = np.zeros(occupied.shape, dtype=np.int32)
    for points in clouds:
        solid = _find_solid(points, occupied.shape, spacing, ball_mm, cloud_spacing=cloud_spacing)
        if solid is not None:
            votes += solid
    return np.asarray((votes >= (len(clouds) + 1) // 2) & ~occupied)


def surface_of_points(points: Points, ball_mm: float = BALL_MM) -> tuple[Points, Faces]:
    """Return a surface through points in mm; it may touch itself, never leaves a gap.

    It is empty for points in one plane, and for points too far apart to enclose a solid.
    """
    try:
        from scipy.spatial import Delaunay, KDTree, QhullError
    except ImportError as error:
        raise DataError(
            "volumes from points need SciPy, which is not installed; pip install 'overt[skulls]'"
        ) from error

    points = np.unique(np.asarray(points, dtype=np.float64), axis=0)
    nothing: tuple[Points, Faces] = (np.zeros((0, 3)), np.zeros((0, 3), dtype=np.int64))
    if len(points) <= _NEIGHBOURS:
        return nothing
    reach = KDTree(points).query(points, _NEIGHBOURS + 1)[0][:, -1]
    distance = float(np.median(reach))
    radius = max(ball_mm, _BALL_SPACINGS * distance)
    # A disk that reaches from a point to its sixth neighbor has the area of six points.
    area_cm2 = len(points) * np.pi * distance**2 / _NEIGHBOURS / 100
    if radius > ball_mm and area_cm2 > LARGEST_CM2:
        return nothing
    # Clouds of a grid have many points on one sphere; a hair of noise makes the cells unique.
    extent = float(np.ptp(points, axis=0).max())
    noise = np.random.default_rng(0).normal(size=points.shape) * 1e-5 * extent
    try:
        cells = Delaunay(points + noise).simplices.astype(np.int64)  # (T, 4)
    except QhullError:  # all points in one plane
        return nothing
    corners = points[cells] + noise[cells]  # (T, 4, 3)
    sides = corners[:, 1:] - corners[:, :1]
    volumes = np.linalg.det(sides)
    cells[volumes < 0] = cells[volumes < 0][:, [0, 1, 3, 2]]
    flat = np.abs(volumes) < 1e-12 * extent**3
    halves = (sides**2).sum(axis=2) / 2
    centers = np.linalg.solve(np.where(flat[:, None, None], np.eye(3), sides), halves[..., None])
    radii = np.where(flat, np.inf, np.linalg.norm(centers[..., 0], axis=1))
    facets = cells[radii < radius][:, _FACETS].reshape(-1, 3)
    # A facet between two kept cells is inside; one that appears once is surface.
    _, first, counts = np.unique(
        np.sort(facets, axis=1), axis=0, return_index=True, return_counts=True
    )
    faces = facets[first[counts == 1]]
    used, renumbered = np.unique(faces, return_inverse=True)
    return points[used], renumbered.reshape(-1, 3)


def face_normals(vertices: Points, faces: Faces) -> Points:
    """Return the outward normals (F, 3), as long as twice the area of each face."""
    a, b, c = (vertices[faces[:, corner]] for corner in range(3))
    return np.asarray(np.cross(b - a, c - a))


def vertex_normals(vertices: Points, faces: Faces) -> Points:
    """Return the unit mean normals (V, 3) of the faces around each vertex, weighted by area."""
    normals = np.zeros((len(vertices), 3))
    for corner in range(3):
        np.add.at(normals, faces[:, corner], face_normals(vertices, faces))
    return np.asarray(normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12))


def smooth_sides(vertices: Points, faces: Faces, points: Points) -> Points:
    """Average out the noise of points (P, 3) along the normals; edges such as a rim stay sharp.

    The ball only touches the outermost points: without the others, noise would thicken a wall.
    """
    from scipy.spatial import KDTree

    points = np.unique(points, axis=0)  # what is drawn twice counts once
    normals = vertex_normals(vertices, faces)
    point_normals = normals[KDTree(vertices).query(points)[1]]  # (P, 3)
    count = min(_SMOOTHED + 1, len(points))  # each vertex is one of the points
    near = KDTree(points).query(vertices, count)[1]  # (V, count)
    cosine = (normals[:, None] * point_normals[near]).sum(axis=2)
    weight = np.where(cosine > _SAME_SIDE, cosine, 0.0)
    # Heights over the tangent plane halfway between two points: those of a sphere are 0.
    mean = normals[:, None] + point_normals[near]
    mean /= np.maximum(np.linalg.norm(mean, axis=2, keepdims=True), 1e-12)
    heights = ((points[near] - vertices[:, None]) * mean).sum(axis=2)
    moves = (weight * heights).sum(axis=1) / np.maximum(weight.sum(axis=1), 1e-12)
    return np.asarray(vertices + moves[:, None] * normals)


def round_faces(vertices: Points, faces: Faces) -> tuple[Points, Faces]:
    """Split each face into four that bend as the normals at its corners say.

    Flat faces between sparse points cut off what is convex and fill what is concave.
    """
    edges = np.sort(faces[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1)  # (3 F, 2)
    edges, number = np.unique(edges, axis=0, return_inverse=True)
    first, second = vertices[edges[:, 0]], vertices[edges[:, 1]]
    normals = vertex_normals(vertices, faces)
    middles = (first + second) / 2
    # The middle of the cubic curve that leaves both ends along their tangent planes (PN triangles).
    for end, sign in ((0, -1), (1, 1)):
        normal = normals[edges[:, end]]
        middles += sign * ((second - first) * normal).sum(axis=1, keepdims=True) * normal / 8
    a, b, c = faces.T
    ab, bc, ca = number.reshape(-1, 3).T + len(vertices)
    corners = ((a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca))
    split = np.concatenate([np.stack(three, axis=1) for three in corners])
    return np.concatenate([vertices, middles]), split


def move_inwards(vertices: Points, faces: Faces, depth: float) -> Points:
    """Move all faces inwards by `depth` times the largest component of their normals."""
    normals = vertex_normals(vertices, faces)
    areas = face_normals(vertices, faces)
    lengths = np.linalg.norm(areas, axis=1, keepdims=True)
    unit = areas / np.maximum(lengths, 1e-12)
    # A vertex at an edge has to move further than the faces beside it.
    cosine, weight = np.zeros(len(vertices)), np.zeros(len(vertices))
    for corner in range(3):
        index = faces[:, corner]
        np.add.at(cosine, index, (unit * normals[index]).sum(axis=1) * lengths[:, 0])
        np.add.at(weight, index, lengths[:, 0])
    cosine = np.maximum(cosine / np.maximum(weight, 1e-12), 0.5)
    steps = depth * np.abs(normals).max(axis=1) / cosine
    return np.asarray(vertices - steps[:, None] * normals)


def solid_of_mesh(vertices: Points, faces: Faces, shape: tuple[int, ...]) -> Mask:
    """Return the voxels whose centers a closed surface, in voxels, goes around.

    Along each column of voxels the faces that are crossed are counted, those that look up as 1 and
    those that look down as -1: overlapping surfaces are fine.
    """
    # Columns never meet an edge or a vertex exactly.
    shifted = vertices + np.array([1.7e-7, 2.9e-7, 1.1e-7])
    a, b, c = (shifted[faces[:, corner]] for corner in range(3))
    # Twice the area of the face's shadow; its sign says where the face looks.
    shadow = (b[:, 0] - a[:, 0]) * (c[:, 1] - a[:, 1]) - (b[:, 1] - a[:, 1]) * (c[:, 0] - a[:, 0])
    low = np.ceil(np.minimum(np.minimum(a, b), c)[:, :2]).astype(np.int64)
    high = np.floor(np.maximum(np.maximum(a, b), c)[:, :2]).astype(np.int64)
    low, high = np.maximum(low, 0), np.minimum(high, np.array(shape[:2]) - 1)
    sizes = np.maximum(high - low + 1, 0)  # (F, 2)
    counts = np.where(shadow != 0, sizes.prod(axis=1), 0)
    winding = np.zeros((shape[0], shape[1], shape[2] + 1), dtype=np.int32)
    for part in _batches(counts):
        number = np.repeat(part, counts[part])  # face of each candidate column
        step = np.arange(len(number)) - np.repeat(
            counts[part].cumsum() - counts[part], counts[part]
        )
        x = low[number, 0] + step // sizes[number, 1]
        y = low[number, 1] + step % sizes[number, 1]
        u = _shadow_weight(b[number], c[number], x, y) / shadow[number]
        v = _shadow_weight(c[number], a[number], x, y) / shadow[number]
        w = 1 - u - v
        hit = (u >= 0) & (v >= 0) & (w >= 0)
        height = (u * a[number, 2] + v * b[number, 2] + w * c[number, 2])[hit]
        above = np.clip(np.ceil(height), 0, shape[2]).astype(np.int64)
        np.add.at(winding, (x[hit], y[hit], above), np.where(shadow[number][hit] > 0, -1, 1))
    # A face that looks down is where a column enters.
    return np.asarray(winding.cumsum(axis=2)[:, :, :-1] > 0)


def _shadow_weight(
    first: Points, second: Points, x: NDArray[np.int64], y: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Twice the signed area of the triangle of two corners and a column."""
    return np.asarray(
        (first[:, 0] - x) * (second[:, 1] - y) - (first[:, 1] - y) * (second[:, 0] - x)
    )


def _batches(counts: NDArray[np.int64], limit: int = 4_000_000) -> list[NDArray[np.int64]]:
    """Split the faces such that each batch has about `limit` candidates at most."""
    indices = np.flatnonzero(counts)
    if not len(indices):
        return []
    batch = counts[indices].cumsum() // limit
    return np.split(indices, np.flatnonzero(np.diff(batch)) + 1)
