"""An implant without any training: the other side of the skull, mirrored, where bone is missing.

The plane of symmetry is found by matching the skull with its own mirror image. Where a defect
crosses the plane, the other side misses the same bone: such implants have a gap there. Needs SciPy;
never imports torch.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError
from overt.geometry.vault import vault_middle
from overt.geometry.voxels import Mask, bounding_box, distance_to, surface

_POINTS = 6000  # of the surface, for matching
_MATCHED = 0.7  # fraction of points that has to have a partner; the defect has none
_ROUNDS = 40
_FEWEST = 500  # points that a reflection is matched by
# A head is not symmetric: mirrored bone this near to the skull alone does not mean a defect.
APART_MM = 3.5
VAULT_MM = 110.0  # below the vertex there is the face
_BESIDE_MM = 12.0  # two walls of a skull that bulges more on one side are less apart
_SMALLEST_MM3 = 500.0  # of mirrored bone without a partner; less is a suture or noise
_AROUND_MM = 30.0  # bone that a mirrored piece has to fit to

Points = NDArray[np.floating[Any]]
Matrix = NDArray[np.float64]


class MirroredImplant(NamedTuple):
    implant: Mask
    mirror: Matrix  # (4, 4) of patient space, mm
    mismatch_mm: float  # mean distance of matched points


def mirrored_implant(skull: Mask, affine: Matrix) -> MirroredImplant:
    """Return the mirrored bone that a defective skull misses.

    The reflection of the whole head shows where bone is missing; matched again around that defect,
    it says which bone.
    """
    try:
        import scipy.ndimage  # noqa: F401
    except ImportError as error:
        raise DataError(
            "the mirror baseline needs SciPy, which is not installed; pip install 'overt[skulls]'"
        ) from error

    mirror, mismatch = find_mirror(skull, affine)
    mirrored = _mirrored(skull, affine, mirror)
    core = _missing_core(skull, affine, mirrored)
    if core.any():
        mirror = _match_around(skull, affine, mirror, core)
        mirrored = _mirrored(skull, affine, mirror)
        core = _missing_core(skull, affine, mirrored)
    implant = np.zeros_like(skull)
    if core.any():
        # Back to the rim of the defect, through mirrored bone.
        spacing = np.linalg.norm(affine[:3, :3], axis=0)
        box = bounding_box(core, _margin(spacing))
        missing = mirrored[box] & ~skull[box]
        implant[box] = missing & (distance_to(core[box], spacing) <= 1.5 * APART_MM)
    return MirroredImplant(implant, mirror, mismatch)


def _margin(spacing: Points) -> list[int]:
    """Return a number of voxels for each axis, beyond which nothing is near."""
    return [int(np.ceil(2 * APART_MM / size)) + 1 for size in spacing]


def _mirrored(skull: Mask, affine: Matrix, mirror: Matrix) -> Mask:
    """Return the mirror image of a skull, on the same voxels."""
    from scipy.ndimage import affine_transform

    # Most of a scan is air: only the box around the bone is read, and the one it is mirrored to.
    box = bounding_box(skull, (1, 1, 1))
    forth = np.linalg.inv(affine) @ mirror @ affine  # of voxels
    corners = np.array(list(product(*((part.start, part.stop) for part in box))))
    moved = corners @ forth[:3, :3].T + forth[:3, 3]
    low = np.clip(np.floor(moved.min(axis=0)).astype(int), 0, skull.shape)
    high = np.clip(np.ceil(moved.max(axis=0)).astype(int) + 1, low, skull.shape)
    back = np.linalg.inv(forth)
    offset = back[:3, :3] @ low + back[:3, 3] - [part.start for part in box]
    target = tuple(slice(first, last) for first, last in zip(low, high, strict=True))
    image = np.zeros_like(skull)
    if image[target].size:
        values = skull[box].astype(np.float32)
        image[target] = (
            affine_transform(values, back[:3, :3], offset, image[target].shape, order=1) > 0.5
        )
    return image


def _missing_core(skull: Mask, affine: Matrix, mirrored: Mask) -> Mask:
    """Return the largest piece of mirrored bone of the vault that has none of the skull near it."""
    from scipy.ndimage import label

    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    away = mirrored & ~skull
    # The bones of the face differ most between the sides, and are not what is looked for.
    indices = np.argwhere(away)
    height = indices @ affine[2, :3] + affine[2, 3]
    bone = np.argwhere(skull) @ affine[2, :3] + affine[2, 3]
    away[tuple(indices[height < bone.max() - VAULT_MM].T)] = False
    if away.any():
        box = bounding_box(away, _margin(spacing))
        if skull[box].any():
            away[box] &= distance_to(skull[box], spacing) > APART_MM
    indices = np.argwhere(away)
    away[tuple(indices[_beside_bone(skull, affine, indices)].T)] = False
    labels, count = label(away)
    sizes = np.bincount(labels.ravel())[1:]
    if not count or sizes.max() * np.prod(spacing) < _SMALLEST_MM3:
        return np.zeros_like(skull)
    return np.asarray(labels == sizes.argmax() + 1)


def _beside_bone(skull: Mask, affine: Matrix, indices: NDArray[np.int64]) -> Mask:
    """Return which voxels (N, 3) have bone of the skull in front or behind.

    Seen from the middle of the vault. Where the sides differ by more than a wall, mirrored bone
    has none of the skull near it, but it does not close a gap.
    """
    bone = np.argwhere(skull) @ affine[:3, :3].T + affine[:3, 3]
    points = indices @ affine[:3, :3].T + affine[:3, 3]
    outward = points - vault_middle(bone)
    outward /= np.maximum(np.linalg.norm(outward, axis=1, keepdims=True), 1e-6)
    step = np.linalg.inv(affine)[:3, :3] @ outward.T  # (3, N) voxels per mm
    size = float(np.linalg.norm(affine[:3, :3], axis=0).min())
    beside = np.zeros(len(indices), dtype=bool)
    for shift in np.arange(-_BESIDE_MM, _BESIDE_MM, size):
        near = np.round(indices.T + shift * step).astype(int)  # (3, N)
        near = np.clip(near, 0, np.array(skull.shape)[:, None] - 1)
        beside |= skull[tuple(near)]
    return beside


def _match_around(skull: Mask, affine: Matrix, mirror: Matrix, core: Mask) -> Matrix:
    """Return the reflection that matches the bone around a defect best."""
    from scipy.spatial import KDTree

    points = np.argwhere(surface(skull)) @ affine[:3, :3].T + affine[:3, 3]
    missing = np.argwhere(core) @ affine[:3, :3].T + affine[:3, 3]
    near = KDTree(missing).query(points, distance_upper_bound=_AROUND_MM)[0] < _AROUND_MM
    return match_points(points, points[near], mirror, 2 * APART_MM)


def match_points(points: Points, near: Points, mirror: Matrix, reach: float) -> Matrix:
    """Return the reflection of points (N, 3) that matches some of them (M, 3) best.

    It starts from `mirror`; matches are at most `reach` apart. With fewer than 500 points or
    matches `mirror` stays as it is.
    """
    from scipy.spatial import KDTree

    if len(near) < _FEWEST:
        return mirror
    tree = KDTree(near)
    for _ in range(_ROUNDS // 2):
        moved = points @ mirror[:3, :3].T + mirror[:3, 3]
        distances, nearest = tree.query(moved, distance_upper_bound=reach)
        matched = np.isfinite(distances)
        if matched.sum() < _FEWEST:
            break
        limit = np.quantile(distances[matched], _MATCHED)
        inliers = matched & (distances <= limit)
        mirror = _reflection(points[inliers], near[nearest[inliers]])
    return mirror


def find_mirror(skull: Mask, affine: Matrix) -> tuple[Matrix, float]:
    """Return the reflection (4, 4) that maps a skull best onto itself, and the mean mismatch in mm.

    It starts from the plane x = middle.
    """
    indices = np.argwhere(surface(skull))
    if len(indices) < 100:
        raise DataError("a skull of fewer than 100 surface voxels has no plane of symmetry")
    return mirror_of_points(indices @ affine[:3, :3].T + affine[:3, 3])


def mirror_of_points(points: Points) -> tuple[Matrix, float]:
    """Return the reflection (4, 4) that maps points (N, 3) of a surface best onto themselves.

    Iterative closest points between the surface and its reflection, from the plane x = middle; the
    worst matches, where bone is missing, are excluded. Also returns the others' mean distance.
    """
    from scipy.spatial import KDTree

    chosen = points[np.random.default_rng(0).permutation(len(points))[:_POINTS]]
    tree = KDTree(points)
    middle = (points[:, 0].min() + points[:, 0].max()) / 2
    matrix = np.diag([-1.0, 1.0, 1.0, 1.0])
    matrix[0, 3] = 2 * middle
    distances = np.zeros(1)
    for _ in range(_ROUNDS):
        moved = chosen @ matrix[:3, :3].T + matrix[:3, 3]
        distances, nearest = tree.query(moved)
        inliers = distances <= np.quantile(distances, _MATCHED)
        matrix = _reflection(chosen[inliers], points[nearest[inliers]])
    return matrix, float(np.sort(distances)[: int(_MATCHED * len(distances))].mean())


def _reflection(source: Points, target: Points) -> Matrix:
    """Return the reflection with a rotation and shift that maps points onto others best."""
    first, second = source.mean(axis=0), target.mean(axis=0)
    u, _, vt = np.linalg.svd((target - second).T @ (source - first))
    turn = u @ np.diag([1.0, 1.0, -np.sign(np.linalg.det(u @ vt))]) @ vt
    matrix = np.eye(4)
    matrix[:3, :3] = turn
    matrix[:3, 3] = second - turn @ first
    return matrix
