"""Segment the skull in a scan; Hounsfield units and masks are distinguished automatically.

Needs SciPy for components. Never imports torch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.data.skulls.volumes import Array, Volume
from overt.errors import DataError
from overt.geometry.voxels import Mask, bounding_box, distance_to, largest_part

BONE_HU = 300.0  # above soft tissue and contrast agent, below the thinnest bone that counts
HEIGHT_MM = 180.0  # from the vertex down; below are neck and lower jaw, as the data sets cut them
ENAMEL_HU = 2000.0  # the densest bone, around the inner ear, is below
TEETH_MM = 110.0  # below the vertex, in front: no tooth is above, and no vault below
TOOTH_MM3 = 20.0  # of enamel; noise and the overshoot of sharp kernels make smaller pieces
ROOTS_MM = 6.0  # around enamel, so that its tooth goes with it
_AIR_HU = -500.0
_MASK_VALUES = 2
_EXPORT = "Export the scan again as numbers."
# By the kind of a NumPy type: what it holds, and the remedy.
_NOT_NUMBERS = {
    "c": ("complex values", "Save their magnitude."),
    "V": ("colors (RGB) or other records", "Save one channel of them."),
    "U": ("text instead of numbers", _EXPORT),
    "S": ("text instead of numbers", _EXPORT),
}


class Bone(NamedTuple):
    volume: Volume  # of booleans
    how: str  # what the values were taken for


def find_bone(scan: Volume, source: str, threshold: float | None = None) -> Bone:
    """Return the skull of a scan; a mask is used as it is.

    `threshold` is in the units of the scan. None: 300 HU if the values are Hounsfield units.
    """
    values = scan.values
    check_values(values, source)
    if threshold is None and is_mask(values):
        return Bone(scan.with_values(scan.mask), "a mask (two values), used as is")
    low, high = float(values.min()), float(values.max())
    if threshold is None:
        if low > _AIR_HU or high < BONE_HU:
            raise DataError(
                f"{source}: values from {low:g} to {high:g} are neither a mask of two values nor "
                "Hounsfield units (air below -500, bone above 300); give the lowest value of bone "
                "by --threshold"
            )
        threshold = BONE_HU
    is_hounsfield = low <= _AIR_HU
    bone_mask, note = segment(scan, threshold, without_teeth=is_hounsfield)
    if not bone_mask.any():
        raise DataError(
            f"{source}: no value reaches the threshold {threshold:g} (values from {low:g} to "
            f"{high:g}); give a lower one by --threshold"
        )
    unit = "Hounsfield units" if is_hounsfield else "intensities"
    return Bone(
        scan.with_values(bone_mask),
        f"{unit} from {low:g} to {high:g}, bone from {threshold:g} on; {note}",
    )


def check_values(values: Array, source: str) -> None:
    """Refuse what is neither a mask nor intensities: one finite number for each voxel."""
    kind = values.dtype.kind
    if kind not in "biuf":
        problem, remedy = _NOT_NUMBERS.get(kind, (f"values of type {values.dtype}", _EXPORT))
        raise DataError(
            f"{source}: {problem}; expected one real number for each voxel, Hounsfield units or a "
            f"mask of 0 and 1. {remedy}"
        )
    count = values.size - int(np.isfinite(values).sum()) if kind == "f" else 0
    if count:
        raise DataError(
            f"{source}: {count} of {values.size} voxels are non-finite (NaN or Inf); replace them, "
            "for example by -1000, the Hounsfield units of air"
        )


def is_mask(values: Array) -> bool:
    """Return whether an array has at most two values, the lower of which is 0."""
    if values.dtype == bool:
        return True
    sample = np.unique(values.ravel()[:: max(values.size // 100_000, 1)])
    if len(sample) > _MASK_VALUES:
        return False
    return len(np.unique(values)) <= _MASK_VALUES and float(values.min()) == 0


def segment(scan: Volume, threshold: float, *, without_teeth: bool) -> tuple[Mask, str]:
    """Return the skull above a threshold and what was dropped: table, jaw, neck, teeth.

    Table and head holder do not touch the skull, so they are separate components; so is a lower jaw
    whose joints show a gap. `without_teeth` needs Hounsfield units.
    """
    try:
        from scipy.ndimage import label
    except ImportError as error:
        raise DataError(
            "bone is segmented with SciPy, which is not installed; pip install 'overt[skulls]'"
        ) from error

    bone = scan.values >= threshold
    labels, count = label(bone)
    if not count:
        return bone, "nothing is left"
    skull = np.asarray(labels == np.bincount(labels.ravel())[1:].argmax() + 1)
    others = int(bone.sum() - skull.sum())
    indices = np.argwhere(skull)
    points = scan.to_patient(indices)  # (N, 3) mm, LPS
    below = points[:, 2].max() - points[:, 2]
    is_neck = below > HEIGHT_MM
    skull[tuple(indices[is_neck].T)] = False
    if is_neck.any():
        skull = largest_part(skull)  # raised shoulders may reach above the cut
    is_kept = skull[tuple(indices.T)]
    teeth = 0
    if without_teeth:
        back = points[is_kept, 1]  # mm toward the back
        in_front = points[:, 1] < (back.min() + back.max()) / 2
        is_dense = scan.values[tuple(indices.T)] >= ENAMEL_HU
        enamel = indices[is_dense & in_front & (below > TEETH_MM) & is_kept]
        before = int(skull.sum())
        skull = _without_teeth(skull, enamel, scan.spacing)
        teeth = before - int(skull.sum())
    note = (
        f"largest of {count} components kept, {others} voxels of others dropped (table, jaw, "
        f"noise), {int((~is_kept).sum())} more than {HEIGHT_MM:g} mm below the vertex or "
        f"connected only there (neck), {teeth} of teeth"
    )
    return skull, note


def _without_teeth(
    skull: Mask, enamel: NDArray[np.int64], spacing: tuple[float, float, float]
) -> Mask:
    """Return a skull without what is near its enamel, indices (N, 3), or only connected by it."""
    if not len(enamel):
        return skull
    from scipy.ndimage import label

    is_enamel = np.zeros_like(skull)
    is_enamel[tuple(enamel.T)] = True
    # Distances are only computed around the teeth, a small part of a head.
    box = bounding_box(is_enamel, [int(np.ceil(ROOTS_MM / step)) for step in spacing])
    pieces, _ = label(is_enamel[box], np.ones((3, 3, 3)))
    volumes = np.bincount(pieces.ravel()) * np.prod(spacing)  # mm³; piece 0 is not enamel
    is_tooth = (volumes >= TOOTH_MM3)[pieces] & (pieces > 0)
    if not is_tooth.any():
        return skull
    rest = skull.copy()
    rest[box] &= distance_to(is_tooth, spacing) > ROOTS_MM
    return largest_part(rest)
