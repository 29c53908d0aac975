"""Implants made fit for printing, and what a surgeon asks about them: thickness, gaps, volume.

Needs SciPy. Never imports torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError
from overt.geometry.solid import vertex_normals
from overt.geometry.voxels import Mask, bounding_box, distance_to, largest_part

logger = logging.getLogger(__name__)

_LONGEST_MM = 25.0  # walls are followed no further
_STEP_MM = 0.2
_RIM_MM = 3.0  # from the skull: what smoothing leaves alone
_NEAR_MM = 12.0  # around an implant: where the skull is looked for

Points = NDArray[np.floating[Any]]
Faces = NDArray[np.int64]


class Finishing(NamedTuple):
    """What is done to an implant; lengths in mm, 0 leaves a treatment out."""

    clearance_mm: float = 0.0  # distance kept from the skull, between the surfaces
    min_wall_mm: float = 0.0  # thinner walls are made as thick
    smooth_mm: float = 0.0  # width of the smoothing; the rim stays as it is
    hole_mm: float = 0.0  # holes through the wall up to this width are closed
    largest_part: bool = True


class Finished(NamedTuple):
    implant: Mask
    changed: dict[str, int]  # voxels that each treatment added (+) or took away (-)
    thin_voxels: int = 0  # in walls that stay thinner than asked: the skull leaves no room


def finish(
    implant: Mask, skull: Mask, spacing: Sequence[float], how: Finishing | None = None
) -> Finished:
    """Return an implant fit for printing: without specks and cavities, and as `how` says.

    Every treatment is counted, so that a mostly repaired implant is noticed before it is printed.
    """
    try:
        from scipy.ndimage import binary_fill_holes, binary_opening
    except ImportError as error:
        raise DataError(
            "implants are finished with SciPy, which is not installed; pip install 'overt[skulls]'"
        ) from error

    how = how or Finishing()
    changed: dict[str, int] = {}
    if not implant.any():
        return Finished(implant, changed)
    volume = np.zeros_like(implant)
    reach = how.clearance_mm + how.min_wall_mm + how.hole_mm + 3 * how.smooth_mm
    margin = [int(np.ceil(reach / step)) + 2 for step in spacing]
    box = bounding_box(implant, margin)
    current, occupied = implant[box], skull[box]

    def keep(name: str, after: Mask) -> Mask:
        changed[name] = int(after.sum()) - int(current.sum())
        return after

    # First: the thin layers around a cavity would be taken for specks.
    current = keep("holes", binary_fill_holes(current) & ~occupied)
    # Threads and specks of one voxel are noise of the points; a wall of two voxels stays.
    opened = binary_opening(current, np.ones((2, 2, 2)))
    current = keep("specks", opened if opened.any() else current)
    if how.largest_part:
        current = keep("parts", largest_part(current))
    if how.hole_mm > 0:
        current = keep("through_holes", close_holes(current, occupied, spacing, how.hole_mm))
    if how.smooth_mm > 0:
        smoothed = keep("smoothing", smooth(current, occupied, spacing, how.smooth_mm))
        if smoothed.sum() < current.sum() / 2:
            raise DataError(
                f"smoothing by {how.smooth_mm:g} mm would remove {_percent(current, smoothed)} "
                "of the implant, whose wall is thinner than that; use a smaller width"
            )
        current = smoothed
    # Before walls are made thicker: it is what makes some of them thin.
    near = None
    if how.clearance_mm > 0 and occupied.any():
        near = gap_to(occupied, spacing) < how.clearance_mm
        current = keep("clearance", current & ~near)
    if how.min_wall_mm > 0 and current.any():
        thickened = thicken(current, occupied, spacing, how.min_wall_mm, near)
        current = keep("thin_walls", thickened)
    if how.largest_part and current.any():  # each of these may have cut something off
        current = keep("parts_at_last", largest_part(current))
    thin = 0
    if how.min_wall_mm > 0 and current.any():
        solid = current | occupied if near is None else current
        radius = how.min_wall_mm / 2
        # Edges and corners are not thin walls: a ball is within twice its radius.
        thin = int(thin_walls(current, solid, spacing, radius, edge=radius).sum())
    if thin:
        logger.warning(
            "%d of %d voxels of the implant are in walls thinner than %g mm: %s leaves no room",
            thin,
            int(current.sum()),
            how.min_wall_mm,
            "the skull" if near is None else f"a clearance of {how.clearance_mm:g} mm",
        )
    volume[box] = current
    return Finished(volume, changed, thin)


def _percent(before: Mask, after: Mask) -> str:
    return f"{100 * (1 - after.sum() / before.sum()):.0f} %"


def gap_to(mask: Mask, spacing: Sequence[float]) -> NDArray[np.float64]:
    """Return the distance in mm of every voxel to a mask, from surface to surface.

    Between centers it would be a voxel more: those that touch would be apart.
    """
    from scipy.ndimage import binary_dilation

    return distance_to(binary_dilation(mask, np.ones((3, 3, 3))), spacing)


def close_holes(implant: Mask, occupied: Mask, spacing: Sequence[float], hole_mm: float) -> Mask:
    """Return the implant with holes through its wall closed, up to a width in mm.

    It is closed together with the skull: the joint between them is not taken for a hole.
    """
    bone = implant | occupied
    grown = distance_to(bone, spacing) <= hole_mm / 2
    # Outside of the box nothing is bone: a shell that leaves it is not closed at its face.
    outside = np.pad(~grown, 1, constant_values=True)
    closed = distance_to(outside, spacing)[1:-1, 1:-1, 1:-1] > hole_mm / 2
    # Where the skull alone would be closed, as in its sutures, nothing is added.
    near = distance_to(implant, spacing) <= hole_mm
    return np.asarray((implant | (closed & near)) & ~occupied)


def smooth(implant: Mask, occupied: Mask, spacing: Sequence[float], width_mm: float) -> Mask:
    """Return the implant with both surfaces smoothed and the rim, where it meets bone, as it is."""
    from scipy.ndimage import gaussian_filter

    sigma = [width_mm / step for step in spacing]
    # Together with the skull: the surface runs on beyond the rim.
    blurred = gaussian_filter((implant | occupied).astype(np.float32), sigma)
    smoothed = (blurred > 0.5) & (distance_to(implant, spacing) <= width_mm)
    if occupied.any():
        rim = distance_to(occupied, spacing) <= _RIM_MM
        smoothed = np.where(rim, implant, smoothed)
    return np.asarray(smoothed & ~occupied)


def thicken(
    implant: Mask,
    occupied: Mask,
    spacing: Sequence[float],
    wall_mm: float,
    near: Mask | None = None,
) -> Mask:
    """Return the implant with walls thinner than `wall_mm` grown to it from their middle.

    Without `near`, the implant rests on the skull, whose bone counts as its wall. With it, a part
    of the volume around the skull stays free; walls beside that grow away from it.
    """
    from scipy.ndimage import maximum_filter

    radius = wall_mm / 2
    solid = implant | occupied if near is None else implant
    depth = distance_to(~solid, spacing)  # of a voxel below the surface
    middle = thin_walls(implant, solid, spacing, radius)
    middle &= depth >= maximum_filter(depth, size=3)
    if not middle.any():
        return implant
    grown = implant | (distance_to(middle, spacing) <= radius)
    if near is None:
        return np.asarray(grown & ~occupied)
    grown = (grown | _away_from(near, middle, spacing, radius)) & ~near
    # What is left of a ball that `near` cuts must not be a thin lip.
    return np.asarray(grown & (implant | ~thin_walls(grown, grown, spacing, radius / 2)))


def thin_walls(
    implant: Mask, solid: Mask, spacing: Sequence[float], radius: float, edge: float = 0.0
) -> Mask:
    """Return voxels that no ball within the solid covers; not those of an edge.

    What the balls leave uncovered is an edge where it ends within `edge` of them.
    """
    centers = distance_to(~solid, spacing) > radius
    if not centers.any():
        return implant.copy()
    distance = distance_to(centers, spacing)
    uncovered = implant & (distance > radius)
    if edge == 0:
        return np.asarray(uncovered)
    beyond = implant & (distance > radius + edge)
    if not beyond.any():
        return np.asarray(beyond)
    # A thin wall is counted up to the thick part that it is on.
    return np.asarray(uncovered & (distance_to(beyond, spacing) <= edge))


def _away_from(near: Mask, middle: Mask, spacing: Sequence[float], radius: float) -> Mask:
    """Return balls that leave `near` free and reach the middle, where there are any."""
    from scipy.ndimage import distance_transform_edt

    free = distance_to(near, spacing) > radius
    balls = np.zeros_like(middle)
    if not free.any():
        return balls
    distance, nearest = distance_transform_edt(~free, sampling=spacing, return_indices=True)
    centers = nearest[:, middle & (distance <= radius)]  # (3, balls)
    balls[tuple(centers)] = True
    return np.asarray(distance_to(balls, spacing) <= radius) if balls.any() else balls


def wall_thickness(
    vertices: Points,  # (V, 3) in mm
    faces: Faces,
    implant: Mask,
    to_indices: Callable[[Points], Points],
    rim: Faces,
) -> NDArray[np.float64]:
    """Return how many mm of implant are below each vertex, along the inward normal: (V,).

    At the rim that normal runs along the wall: its vertices take the number of the nearest other.
    """
    from scipy.spatial import KDTree

    inward = -vertex_normals(vertices, faces)
    thickness = np.zeros(len(vertices))
    inside = np.ones(len(vertices), dtype=bool)
    for depth in np.arange(_STEP_MM, _LONGEST_MM, _STEP_MM):
        indices = np.round(to_indices(vertices + inward * depth)).astype(int)
        valid = ((indices >= 0) & (indices < implant.shape)).all(axis=1)
        hit = np.zeros(len(vertices), dtype=bool)
        hit[valid] = implant[tuple(indices[valid].T)]
        # The first millimeter may still be above the steps of the mask.
        inside &= hit | (depth < 1.0)
        thickness[inside & hit] = depth
        if not inside.any():
            break
    off_rim = np.setdiff1d(np.arange(len(vertices)), rim)
    if len(off_rim):
        at_rim = np.unique(rim)
        nearest = KDTree(vertices[off_rim]).query(vertices[at_rim])[1]
        thickness[at_rim] = thickness[off_rim[nearest]]
    return thickness


def rim_faces(
    vertices: Points,  # (V, 3) in voxels
    faces: Faces,
    implant: Mask,
    skull: Mask,
    spacing: Sequence[float],
) -> Faces:
    """Return the faces where an implant meets bone: within a voxel of its smallest distance."""
    if not len(faces):
        return faces
    box = _surroundings(implant, spacing)
    if not skull[box].any():
        return faces[:0]
    gap = gap_to(skull[box], spacing)
    first = [part.start for part in box]
    nearest = np.clip(np.round(vertices - first).astype(int), 0, np.array(gap.shape) - 1)
    widest = gap[implant[box]].min() + max(spacing)
    return np.asarray(faces[(gap[tuple(nearest.T)] <= widest)[faces].all(axis=1)])


def _surroundings(implant: Mask, spacing: Sequence[float]) -> tuple[slice, ...]:
    """Return the box in which distances to the skull are measured."""
    return bounding_box(implant, [int(np.ceil(_NEAR_MM / step)) for step in spacing])


def measures(implant: Mask, skull: Mask, spacing: Sequence[float]) -> dict[str, float]:
    """Return volume, extent and distances to the skull of an implant."""
    voxel = float(np.prod(spacing))
    result = {"volume_cm3": float(implant.sum()) * voxel / 1000}
    if not implant.any():
        return result
    box = _surroundings(implant, spacing)
    sizes = np.ptp(np.argwhere(implant), axis=0) + 1
    result |= {
        f"extent_{axis}_mm": float(n * s) for axis, n, s in zip("ijk", sizes, spacing, strict=True)
    }
    if skull[box].any():
        distance = gap_to(skull[box], spacing)[implant[box]]
        result["gap_to_skull_mm"] = float(distance.min())
        result["furthest_from_skull_mm"] = float(distance.max())
    return result
