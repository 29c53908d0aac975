"""An implant without any training: the vault of the skull, continued across a hole in it.

Seen from the center of the vault, each direction has a radius of the outer and of the inner
surface. Across the hole both are those of least bending that continue the vault around it.
Directions form a square chart: distance from its middle is the angle from the vertex. Coordinates
are those of the patient (x left, y back, z up) in mm. Needs SciPy; never imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError
from overt.geometry.voxels import Mask

_VAULT_MM = 90.0  # below the vertex, where width and length are those of the vault
_REACH = np.deg2rad(95.0)  # from the vertex; orbits and ears are below
_CELLS = 201  # of the chart along a side: about 1.4 mm each
_STEP_MM = 0.5  # along a ray
_NEAR = 0.75  # of the median radius: bone further inside does not cover the vault
_SMALLEST_MM2 = 200.0  # smaller gaps are sutures and pores
_RIM = 3  # cells around the hole, where rays pass through the cut
_BAND = 15  # cells of the vault around that, which the surfaces are fitted to
_LENGTH = 2.0  # cells: smaller features are noise, which would bend the middle of a large hole

Array = NDArray[np.floating[Any]]
Matrix = NDArray[np.float64]


class InterpolatedImplant(NamedTuple):
    implant: Mask
    hole_mm2: float  # area of the hole


class _Surfaces(NamedTuple):
    """Radii in mm by direction, (cells, cells); only valid where the vault is covered."""

    outer: NDArray[np.float64]
    inner: NDArray[np.float64]
    is_covered: Mask


def vault_middle(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the center of the vault, (3,), of bone at points (N, 3) in mm."""
    top = points[:, 2].max()
    vault = points[points[:, 2] > top - _VAULT_MM]
    low, high = vault.min(axis=0), vault.max(axis=0)
    middle = (low + high) / 2
    # The height of a vault above its center is about 0.42 of its length.
    middle[2] = top - 0.42 * (high[1] - low[1])
    return np.asarray(middle)


def interpolated_implant(skull: Mask, affine: Matrix) -> InterpolatedImplant:
    """Return the bone that closes the largest hole in the vault of a defective skull."""
    try:
        from scipy import ndimage
    except ImportError as error:
        raise DataError(
            "interpolation needs SciPy, which is not installed; pip install 'overt[skulls]'"
        ) from error

    points = np.argwhere(skull) @ affine[:3, :3].T + affine[:3, 3]
    if len(points) < 1000:
        raise DataError(f"the skull has {len(points)} voxels of bone; expected a whole vault")
    middle = vault_middle(points)
    longest = float(np.linalg.norm(points - middle, axis=1).max())
    surfaces = _surfaces(skull, affine, middle, longest)
    radius = float(np.median(surfaces.outer[surfaces.is_covered]))
    hole, area = _hole(surfaces.is_covered, radius)
    unknown = ndimage.binary_dilation(hole, iterations=_RIM)
    region = ndimage.binary_dilation(unknown, iterations=_BAND)
    outer, inner = _fitted(surfaces[:2], region, surfaces.is_covered & ~unknown)
    grown = ndimage.binary_dilation(hole)
    box = _box(skull.shape, affine, middle, grown, (outer, inner))
    # Empty voxels between both surfaces, in directions of the hole.
    empty = np.argwhere(~skull[box]) + [part.start for part in box]
    offset = empty @ affine[:3, :3].T + affine[:3, 3] - middle
    distance = np.linalg.norm(offset, axis=1)
    cells = _chart(offset, distance)
    high, low, inside = (
        ndimage.map_coordinates(values.astype(np.float32), cells, order=1, mode="nearest")
        for values in (outer, inner, grown)
    )
    implant = np.zeros_like(skull)
    implant[tuple(empty[(distance <= high) & (distance >= low) & (inside > 0.3)].T)] = True
    return InterpolatedImplant(implant, area)


def _directions() -> tuple[NDArray[np.float64], Mask]:
    """Return unit vectors (cells, cells, 3) of the chart, and which are within reach."""
    line = np.linspace(-_REACH, _REACH, _CELLS)
    u, v = np.meshgrid(line, line, indexing="ij")
    angle = np.hypot(u, v)
    factor = np.sinc(angle / np.pi)  # sin(angle) / angle
    return np.stack([u * factor, v * factor, np.cos(angle)], axis=-1), angle <= _REACH


def _chart(offset: Array, distance: Array) -> Array:
    """Return the positions (2, N) in the chart of vectors (N, 3) from the center."""
    angle = np.arccos(np.clip(offset[:, 2] / np.maximum(distance, 1e-6), -1, 1))
    across = np.maximum(np.hypot(offset[:, 0], offset[:, 1]), 1e-6)
    flat = offset[:, :2] / across[:, None] * angle[:, None]  # (N, 2) radians
    return np.asarray((flat.T / _REACH + 1) / 2 * (_CELLS - 1))


def _box(
    shape: tuple[int, ...],
    affine: Matrix,
    middle: Array,
    cells: Mask,
    surfaces: Sequence[NDArray[np.float64]],
) -> tuple[slice, ...]:
    """Return the part of a volume that holds both surfaces in the directions of some cells."""
    directions = _directions()[0][cells]  # (N, 3)
    points = np.concatenate([directions * radii[cells][:, None] for radii in surfaces]) + middle
    inverse = np.linalg.inv(affine)
    indices = points @ inverse[:3, :3].T + inverse[:3, 3]
    low = np.maximum(np.floor(indices.min(axis=0)).astype(int) - 1, 0)
    high = np.minimum(np.ceil(indices.max(axis=0)).astype(int) + 2, shape)
    return tuple(slice(int(a), max(int(a), int(b))) for a, b in zip(low, high, strict=True))


def _surfaces(skull: Mask, affine: Matrix, middle: Array, longest: float) -> _Surfaces:
    """Follow a ray in each direction; the last bone on it is the vault."""
    from scipy.ndimage import map_coordinates

    directions, _ = _directions()
    radii = np.arange(0.25 * longest, longest + _STEP_MM, _STEP_MM)
    inverse = np.linalg.inv(affine)
    start = inverse[:3, :3] @ middle + inverse[:3, 3]
    along = directions @ inverse[:3, :3].T  # (cells, cells, 3) voxels per mm
    values = skull.astype(np.float32)
    is_bone = np.empty((_CELLS, _CELLS, len(radii)), dtype=bool)
    for row in range(_CELLS):  # by rows: all rays at once take 200 MB
        indices = start[:, None, None] + along[row].T[..., None] * radii
        is_bone[row] = map_coordinates(values, indices, order=1) > 0.5
    last = len(radii) - 1 - np.argmax(is_bone[..., ::-1], axis=-1)
    order = np.arange(len(radii))
    gap = np.where(~is_bone & (order <= last[..., None]), order, 0).max(axis=-1)
    has_bone = is_bone.any(axis=-1)
    if not has_bone.any():
        raise DataError("no bone was found around the center of the vault; check the orientation")
    outer, inner = radii[last] + _STEP_MM / 2, radii[np.minimum(gap + 1, last)] - _STEP_MM / 2
    is_covered = has_bone & (outer > _NEAR * np.median(outer[has_bone]))
    return _Surfaces(outer, inner, is_covered)


def _hole(is_covered: Mask, radius: float) -> tuple[Mask, float]:
    """Return the largest uncovered region of the chart and its area in mm²."""
    from scipy.ndimage import binary_erosion, label

    directions, within = _directions()
    labels, count = label(within & ~is_covered)
    # A cell of the chart covers less of the sphere the further it is from the vertex.
    angle = np.arccos(np.clip(directions[..., 2], -1, 1))
    cell = (2 * _REACH / (_CELLS - 1) * radius) ** 2 * np.sinc(angle / np.pi)
    areas = np.bincount(labels.ravel(), weights=cell.ravel(), minlength=count + 1)
    areas[0] = 0
    largest = int(areas.argmax())
    area = float(areas[largest])
    if area < _SMALLEST_MM2:
        raise DataError(
            f"the vault has no hole of {_SMALLEST_MM2 / 100:g} cm² or more (largest: "
            f"{area / 100:.1f}); interpolation closes holes of the vault. Use a trained model "
            "(--checkpoint), or --mirror for defects of the face and base."
        )
    hole = labels == largest
    edge = within & ~binary_erosion(within, iterations=_RIM + 1)
    if (hole & edge).any():
        raise DataError(
            f"the largest hole of the vault ({area / 100:.0f} cm²) reaches below its widest part, "
            "so that its lower rim is not part of the vault; use --mirror, or a trained model "
            "(--checkpoint)."
        )
    return hole, area


def _fitted(
    surfaces: Sequence[NDArray[np.float64]], region: Mask, is_known: Mask
) -> list[NDArray[np.float64]]:
    """Return the surfaces of least bending in a region, near the known values: thin plates."""
    from scipy.sparse import csc_matrix, diags
    from scipy.sparse.linalg import splu

    number = np.full(region.shape, -1)
    number[region] = np.arange(region.sum())
    cells = np.argwhere(region[1:-1, 1:-1]) + 1
    steps = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)])
    near = number[tuple(np.moveaxis(cells + steps[:, None], -1, 0))]  # (5, cells)
    near = near[:, (near >= 0).all(axis=0)]  # differences within the region
    rows = np.broadcast_to(np.arange(near.shape[1]), near.shape)
    weights = np.broadcast_to([[-4.0], [1.0], [1.0], [1.0], [1.0]], near.shape)
    shape = (near.shape[1], int(region.sum()))
    bending = csc_matrix((weights.ravel(), (rows.ravel(), near.ravel())), shape=shape)
    known = is_known[region].astype(float) / _LENGTH**4
    system = splu(csc_matrix(bending.T @ bending + diags(known)))
    results = []
    for values in surfaces:
        result = values.copy()
        result[region] = system.solve(known * values[region])
        results.append(result)
    return results
