"""Volumes of skulls and implants in patient space, and the conversion of SkullFix volumes.

Patient space is LPS in mm, as in DICOM and NRRD: x grows to the patient's left, y to the back, z to
the head. NIfTI and some viewers use RAS, where only x and y change sign. Never imports torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.errors import ConfigError, DataError

SIDE = 512  # voxels along a side of a whole volume
SKULLFIX_SPACING = 0.45  # mm, to which SkullFix is resampled
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])  # its own inverse
# Each letter names the direction in which an axis grows: the axis of LPS, and the sign along it.
_LETTERS = {"L": (0, 1), "R": (0, -1), "P": (1, 1), "A": (1, -1), "S": (2, 1), "I": (2, -1)}

Array = NDArray[Any]
Matrix = NDArray[np.float64]
Points = NDArray[np.floating[Any]]  # (..., 3)
Spacing = tuple[float, float, float]  # mm along each axis
Indices = NDArray[np.floating[Any]] | NDArray[np.integer[Any]]


def spacing_of(affine: Matrix) -> Spacing:
    """Return the size of a voxel along each axis of the array, in mm."""
    columns = np.abs(affine[:3, :3]).T
    # The length of a vector along one axis is exact.
    x, y, z = (float(c.max() if np.count_nonzero(c) <= 1 else np.linalg.norm(c)) for c in columns)
    return x, y, z


class Volume(NamedTuple):
    """An array of voxels, and the affine that maps their indices to LPS in mm."""

    values: Array  # (x, y, z) or any other order of axes
    affine: Matrix  # (4, 4)

    @classmethod
    def of(cls, values: Array, spacing: tuple[float, float, float]) -> Volume:
        """Return a volume whose axes are those of LPS and whose first voxel is at the origin."""
        return cls(values, np.diag([*spacing, 1.0]))

    @property
    def mask(self) -> NDArray[np.bool_]:
        return np.asarray(self.values > 0)

    @property
    def spacing(self) -> Spacing:
        """Return the size of a voxel along each axis of the array, in mm."""
        return spacing_of(self.affine)

    def with_values(self, values: Array) -> Volume:
        """Return other values with the same affine."""
        return Volume(values, self.affine)

    def to_patient(self, indices: Indices) -> Points:
        """Return voxel indices (..., 3) in mm of the patient."""
        return np.asarray(indices @ self.affine[:3, :3].T + self.affine[:3, 3])

    def to_indices(self, patient: Points) -> Points:
        """Return mm of the patient (..., 3) as voxel indices."""
        inverse = np.linalg.inv(self.affine[:3, :3])
        return np.asarray((patient - self.affine[:3, 3]) @ inverse.T)

    def check(self, source: str) -> Volume:
        """Reject an affine that is not finite or is singular; return the volume."""
        directions = self.affine[:3, :3]
        steps = np.prod(self.spacing)
        if not np.isfinite(self.affine).all() or steps == 0:
            raise DataError(
                f"{source}: the size or direction of its voxels is {directions.tolist()}; expected "
                "three finite axes of a length above 0. Export the scan again with its spacing."
            )
        if abs(np.linalg.det(directions)) < 1e-3 * steps:
            raise DataError(
                f"{source}: the axes of its voxels are {directions.tolist()}, of which one is a "
                "combination of the others; expected three directions. Export the scan again."
            )
        return self


class CloudFrame(NamedTuple):
    """Coordinates of clouds: those of the data set's voxels, made isotropic, for any scan.

    For a volume with the data set's axes and cubic voxels they are its voxel indices, as published.
    """

    matrix: Matrix  # (3, 3) from voxel indices of the volume
    unit_mm: float

    def to_cloud(self, indices: Points) -> Points:
        return np.asarray(indices @ self.matrix.T)

    def to_indices(self, cloud: Points) -> Points:
        return np.asarray(cloud @ np.linalg.inv(self.matrix).T)


def cloud_frame(volume: Volume, axes: str | None = None) -> CloudFrame:
    """Return the coordinates of a volume's clouds.

    `axes` is the axis orientation of the data set, such as LPS; a scan is rotated to match it.
    None: the volume belongs to the data set.
    """
    spacing = volume.spacing
    directions = np.diag(spacing)
    if axes is not None:
        directions = axes_matrix(axes).T @ volume.affine[:3, :3]
    return CloudFrame(directions / spacing[0], spacing[0])


def axes_matrix(axes: str) -> Matrix:
    """Return the unit vectors, as columns in LPS, of axes named by three letters such as RAS."""
    ends = [_LETTERS.get(letter) for letter in axes.upper()]
    known_ends = [end for end in ends if end is not None]
    if len(ends) != 3 or sorted(axis for axis, _ in known_ends) != [0, 1, 2]:
        raise ConfigError(
            f"axes {axes!r}; expected three letters, one each of L or R, P or A, S or I, such as "
            "LPS or RAS"
        )
    matrix = np.zeros((3, 3))
    for column, (axis, sign) in enumerate(known_ends):
        matrix[axis, column] = sign
    return matrix


class Frame(NamedTuple):
    """How a SkullFix volume was converted to 512 voxels: its zoom, crop and padding."""

    zoom: tuple[float, float, float]
    box: tuple[slice, ...]
    before: tuple[int, int, int]  # voxels put in front
    shape: tuple[int, ...]  # of the volume itself

    def apply(self, values: Array) -> NDArray[np.bool_]:
        """Convert any volume of the same skull: resample, crop and pad it identically."""
        cropped = resample(values, self.zoom)[self.box]
        mask = np.zeros((SIDE, SIDE, SIDE), dtype=bool)
        target = tuple(
            slice(first, first + size)
            for first, size in zip(self.before, cropped.shape, strict=True)
        )
        mask[target] = cropped
        return mask

    def to_indices(self, points: Points) -> Points:
        """Return points (..., 3) of the 512 voxels as indices of the volume itself."""
        starts = np.array([part.start for part in self.box])
        sizes = np.array(self.shape)
        resampled = np.round(sizes * np.array(self.zoom))
        # The first and last voxel keep their positions.
        steps = (sizes - 1) / np.maximum(resampled - 1, 1)
        return np.asarray((points - np.array(self.before) + starts) * steps)


def skullfix_frame(complete: Volume, path: Any) -> Frame:
    """Resample to 0.45 mm, crop empty slabs around the complete skull, pad to 512 voxels.

    Padding is on both sides in x and y, with an odd voxel at the end, and only at the end in z.
    """
    zoom = (1.0, 1.0, 1.0)
    if complete.spacing[2] > 0:
        x, y, z = (step / SKULLFIX_SPACING for step in complete.spacing)
        zoom = (x, y, z)
    values = resample(complete.values, zoom)
    if not values.any():
        raise DataError(f"{path}: the complete skull has no voxels")
    box = []
    for axis in range(3):
        other_axes = tuple(other for other in range(3) if other != axis)
        filled = np.flatnonzero(values.any(axis=other_axes))
        box.append(slice(int(filled[0]), int(filled[-1]) + 1))
    sizes = [part.stop - part.start for part in box]
    if max(sizes) > SIDE:
        raise DataError(
            f"{path}: the skull measures {sizes} voxels of {SKULLFIX_SPACING} mm; at most {SIDE} "
            "fit. Check the voxel size in its header."
        )
    before = ((SIDE - sizes[0]) // 2, (SIDE - sizes[1]) // 2, 0)
    return Frame(zoom, tuple(box), before, complete.values.shape)


def resample(values: Array, zoom: tuple[float, float, float]) -> NDArray[np.bool_]:
    """Resample a mask: linear along each axis, then a threshold of one half.

    The first and last voxel keep their positions, as in SciPy's zoom.
    """
    result: Array = (values > 0).astype(np.float32)
    for axis, factor in enumerate(zoom):
        before = result.shape[axis]
        after = round(before * factor)
        if after == before:
            continue
        positions = np.linspace(0, before - 1, after)
        low = np.minimum(positions.astype(int), max(before - 2, 0))
        fraction = (positions - low).astype(np.float32)
        fraction = fraction.reshape([-1 if other == axis else 1 for other in range(3)])
        lower = np.take(result, low, axis)
        upper = np.take(result, np.minimum(low + 1, before - 1), axis)
        result = lower + (upper - lower) * fraction
    return result >= 0.5
