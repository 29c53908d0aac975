"""overt/data/skulls/bone.py: a mask is told from Hounsfield units, and bone from the table."""

from typing import Any

import numpy as np
import pytest

from overt.data.skulls.bone import find_bone
from overt.data.skulls.volumes import Volume
from overt.errors import DataError

SPACING = (2.0, 2.0, 10.0)


def head() -> np.ndarray:
    """Air, a head of water with bone around it, a table below, and a neck."""
    values = np.full((40, 40, 30), -1000, dtype=np.int16)
    x, y, _ = np.indices(values.shape)
    distance = np.hypot(x - 20, y - 20)
    values[distance < 15] = 40
    values[(distance < 15) & (distance > 11)] = 900
    values[2:38, 38:, :] = 500
    return values


def test_hounsfield_units_are_segmented() -> None:
    values = head()
    bone = find_bone(Volume.of(values, SPACING), "head")
    assert "Hounsfield units from -1000 to 900, bone from 300 on" in bone.how
    assert not bone.volume.values[:, 38:].any()  # the table
    assert not bone.volume.values[20, 20].any()  # the brain, and air is no bone
    # 180 mm from the vertex down are 18 slices and the one that they begin with.
    assert bone.volume.values[20, 7].tolist() == [False] * 11 + [True] * 19


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int16, np.float32])
def test_a_mask_is_taken_as_it_is(kind: type) -> None:
    mask = head() > 300
    bone = find_bone(Volume.of((mask * 255).astype(kind), SPACING), "mask")
    assert "a mask" in bone.how
    np.testing.assert_array_equal(bone.volume.values, mask)


def test_other_values_need_a_threshold() -> None:
    gray = Volume.of(np.random.default_rng(0).integers(0, 255, (9, 9, 9), np.uint8), SPACING)
    with pytest.raises(DataError, match=r"from 0 to 254 are neither a mask.*--threshold"):
        find_bone(gray, "x")
    assert "intensities from 0 to 254, bone from 100" in find_bone(gray, "x", 100.0).how
    with pytest.raises(DataError, match="no value reaches the threshold 1000"):
        find_bone(gray, "x", 1000.0)


def test_voxels_that_are_not_finite_are_counted() -> None:
    values = np.zeros((3, 3, 3))
    values[0, 0] = np.nan, np.inf, 1
    with pytest.raises(DataError, match=r"2 of 27 voxels are non-finite.*replace them.*-1000"):
        find_bone(Volume.of(values, SPACING), "x")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (np.complex64, r"complex values; expected one real number.*magnitude"),
        ([("R", "u1"), ("G", "u1"), ("B", "u1")], r"colors \(RGB\).*one channel"),
        ("U3", "text instead of numbers"),
        ("M8[s]", "values of type datetime64"),
    ],
)
def test_what_is_not_a_number_is_named(kind: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_bone(Volume.of(np.zeros((3, 3, 3), dtype=kind), SPACING), "x")
