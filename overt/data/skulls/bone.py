"""Segment the skull in a scan; Hounsfield units and masks are distinguished automatically.

Needs SciPy for components. Never imports torch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overt.data.skulls.volumes import Array, Volume
from overt.errors import DataError
from overt.geometry.voxels import Mask

BONE_HU = 300.0  # above soft tissue and contrast agent, below the thinnest bone that counts
HEIGHT_MM = 180.0  # from the vertex down; below are neck and lower jaw, as the data sets cut them
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
    bone_mask, note = segment(scan, threshold)
    if not bone_mask.any():
        raise DataError(
            f"{source}: no value reaches the threshold {threshold:g} (values from {low:g} to "
            f"{high:g}); give a lower one by --threshold"
        )
    unit = "Hounsfield units" if low <= _AIR_HU else "intensities"
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


def segment(scan: Volume, threshold: float, height_mm: float = HEIGHT_MM) -> tuple[Mask, str]:
    """Return the largest component above a threshold, below the vertex, and what was dropped.

    Table and head holder do not touch the skull, so they are separate components; so is a lower jaw
    whose joints show a gap. Teeth of the upper jaw stay.
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
    sizes = np.bincount(labels.ravel())[1:]
    bone_mask = np.asarray(labels == sizes.argmax() + 1)
    dropped = int(bone.sum() - bone_mask.sum())
    height = scan.to_patient(np.argwhere(bone_mask))[:, 2]
    low = height < height.max() - height_mm
    bone_mask[tuple(np.argwhere(bone_mask)[low].T)] = False
    note = (
        f"largest of {count} components kept, {dropped} voxels of others dropped (table, jaw, "
        f"noise), {int(low.sum())} more than {height_mm:g} mm below the vertex (neck)"
    )
    return bone_mask, note
