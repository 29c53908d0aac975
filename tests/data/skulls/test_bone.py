"""overt/data/skulls/bone.py: masks are told from Hounsfield units, bone from table and teeth."""

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


def test_what_only_the_neck_connects_to_the_skull_is_dropped_with_it() -> None:
    values = head()
    values[36:39, 18:22, :15] = 900  # a shoulder that reaches above the cut, beside the head
    values[30:39, 18:22, 2:4] = 900
    skull = find_bone(Volume.of(values, SPACING), "body")
    bone = values[:, :38] >= 300
    assert bone[36, 20, 12]
    assert not skull.volume.values[36:39].any()
    assert "largest of 2 components" in skull.how
    count = bone.sum() - skull.volume.values.sum()
    assert f"{count} more than 180 mm below the vertex or connected only there" in skull.how


def with_teeth(affine: np.ndarray, shape: tuple[int, int, int]) -> tuple[Volume, dict[str, Any]]:
    """A braincase of 140 mm with jaws 140 mm below the vertex; the lower one hangs on its teeth."""
    indices = np.argwhere(np.ones(shape, dtype=bool))
    x, y, z = (indices @ affine[:3, :3].T + affine[:3, 3]).T
    radius = np.sqrt(x**2 + y**2 + z**2)
    in_arch = (np.abs(np.hypot(x, y + 20) - 30) < 6) & (y < -20)
    parts = {
        "vault": (radius < 70) & (radius > 62) & (z > -60),
        "plate": (np.abs(radius - 68) < 3) & (np.abs(x) < 8) & (y < 0) & (np.abs(z - 10) < 8),
        "inner ear": (np.abs(radius - 66) < 4) & (y > 40) & (np.abs(z + 45) < 8),
        "upper jaw": in_arch & (z < -55) & (z > -70),
        "teeth": in_arch & (z <= -70) & (z > -82),
        "lower jaw": in_arch & (z <= -82) & (z > -100),
        "spine": (np.abs(x) < 8) & (np.abs(y - 50) < 8) & (z < -40) & (z > -120),
        "chest": (np.abs(x) < 20) & (y < 58) & (z <= -112) & (z > -120),
    }
    values = np.full(len(indices), -1000, dtype=np.int16)
    for name, inside in parts.items():
        values[inside] = 2500 if name in ("plate", "inner ear", "teeth") else 900
    shaped = {name: inside.reshape(shape) for name, inside in parts.items()}
    return Volume(values.reshape(shape), affine), shaped


@pytest.mark.parametrize("flip", [1, -1])
def test_teeth_are_left_out_but_neither_plates_nor_the_inner_ear(flip: int) -> None:
    affine = np.diag([2.0, 2.0 * flip, 2.5 * flip, 1.0])
    affine[:3, 3] = -76, -76 * flip, -101 * flip
    scan, parts = with_teeth(affine, (77, 77, 82))
    assert scan.values[parts["teeth"]].size > 500
    skull = find_bone(scan, "head")
    mask = skull.volume.values
    kept = {name: mask[inside].mean() for name, inside in parts.items() if inside.any()}
    assert kept["teeth"] == 0
    assert kept["lower jaw"] == 0  # it touched nothing but the teeth
    assert kept["vault"] == kept["plate"] == kept["inner ear"] == 1
    assert 0.3 < kept["upper jaw"] < 0.8  # 9 of its 15 mm; roots are in the rest
    count = ((scan.values >= 300) & ~mask).sum()
    assert skull.how.endswith(f"{count} of teeth")


def test_the_front_is_that_of_the_head_also_if_a_chest_reaches_farther() -> None:
    affine = np.diag([2.0, 2.0, 2.5, 1.0])
    affine[:3, 3] = -76, -250, -121
    scan, parts = with_teeth(affine, (77, 164, 90))
    mask = find_bone(scan, "body").volume.values
    assert parts["chest"].any()
    assert not mask[parts["chest"] | parts["teeth"]].any()
    assert mask[parts["vault"]].all()


def test_single_dense_voxels_in_the_face_are_no_teeth() -> None:
    """Noise and sharp kernels raise single voxels of compact bone above the values of enamel."""
    affine = np.diag([2.0, 2.0, 2.5, 1.0])
    affine[:3, 3] = -76, -76, -101
    scan, parts = with_teeth(affine, (77, 77, 82))
    clean = find_bone(scan, "head").volume.values
    x, y, z = np.argwhere(parts["vault"]).T
    is_noise = (y < 38) & (z < 24) & (x % 4 == 0) & (y % 4 == 0) & (z % 4 == 0)
    assert is_noise.sum() > 20
    values = scan.values.copy()
    values[x[is_noise], y[is_noise], z[is_noise]] = 2500
    np.testing.assert_array_equal(find_bone(scan.with_values(values), "head").volume.values, clean)
    values[parts["teeth"]] = 900
    skull = find_bone(scan.with_values(values), "head")
    assert skull.how.endswith(", 0 of teeth")


def test_teeth_are_only_recognized_in_hounsfield_units() -> None:
    affine = np.diag([2.0, 2.0, 2.5, 1.0])
    affine[:3, 3] = -76, -76, -101
    scan, _ = with_teeth(affine, (77, 77, 82))
    shifted = scan.with_values(scan.values + 1000)
    skull = find_bone(shifted, "head", 1300.0)
    assert skull.how.endswith(", 0 of teeth")
    np.testing.assert_array_equal(skull.volume.values, scan.values >= 300)


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
