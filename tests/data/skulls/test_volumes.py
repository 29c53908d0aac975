"""overt/data/skulls/volumes.py: patient space, and SkullFix in the shape of SkullBreak."""

from pathlib import Path

import numpy as np
import pytest

from overt.data.skulls import volumes
from overt.errors import ConfigError, DataError

OBLIQUE = np.array(
    [[0.0, 0.48, 0.36, -12.5], [-0.5, 0.0, 0.0, 30.25], [0.0, 0.36, -0.48, -7.0], [0, 0, 0, 1]]
)


def test_indices_and_patient_space_are_inverse() -> None:
    volume = volumes.Volume(np.zeros((2, 3, 4)), OBLIQUE)
    indices = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_allclose(volume.to_indices(volume.to_patient(indices)), indices)
    np.testing.assert_allclose(volume.to_patient(np.zeros(3)), [-12.5, 30.25, -7.0])


@pytest.mark.parametrize("axes", ["LPS", "RAS", "SAL"])
def test_clouds_have_the_axes_of_the_data_set_whatever_those_of_the_scan(axes: str) -> None:
    """The same patient in three grids gives the same cloud, up to its shift and unit."""
    patient = np.random.default_rng(0).normal(size=(6, 3)) * 50
    grids = [np.diag([0.4, 0.4, 0.4, 1.0]), np.diag([-0.5, 0.5, 2.0, 1.0]), OBLIQUE]
    clouds = []
    for affine in grids:
        volume = volumes.Volume(np.zeros((1, 1, 1)), affine).check("x")
        frame = volumes.cloud_frame(volume, axes)
        cloud = frame.to_cloud(volume.to_indices(patient))
        np.testing.assert_allclose(frame.to_indices(cloud), volume.to_indices(patient))
        clouds.append((cloud - cloud.mean(axis=0)) * frame.unit_mm)
    np.testing.assert_allclose(clouds[0], clouds[1], atol=1e-9)
    np.testing.assert_allclose(clouds[0], clouds[2], atol=1e-9)


def test_clouds_of_the_data_set_are_in_voxels_as_published() -> None:
    frame = volumes.cloud_frame(volumes.Volume.of(np.zeros((1, 1, 1)), (0.4, 0.4, 0.4)), "LPS")
    np.testing.assert_array_equal(frame.matrix, np.eye(3))
    assert frame.unit_mm == 0.4


@pytest.mark.parametrize("affine", [np.diag([1.0, 0.0, 1.0, 1.0]), np.full((4, 4), np.nan)])
def test_flat_space_is_refused(affine: np.ndarray) -> None:
    with pytest.raises(DataError, match="x: the size or direction of its voxels"):
        volumes.Volume(np.zeros((1, 1, 1)), affine).check("x")


def test_axes_that_are_no_space_are_refused() -> None:
    with pytest.raises(ConfigError, match="axes 'LRS'; expected three letters"):
        volumes.axes_matrix("LRS")


def test_resampling_keeps_a_box_in_its_place() -> None:
    mask = np.zeros((10, 10, 10), dtype=bool)
    mask[2:8, 3:6, 4:9] = True
    same = volumes.resample(mask, (1.0, 1.0, 1.0))
    np.testing.assert_array_equal(same, mask)
    finer = volumes.resample(mask, (2.0, 1.0, 1.0))
    assert finer.shape == (20, 10, 10)
    assert abs(int(finer.sum()) - 2 * int(mask.sum())) <= 15  # one slab of 3 x 5


def test_skullfix_is_cropped_and_padded_to_512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes, "SIDE", 32)
    complete = np.zeros((20, 24, 18), dtype=np.uint8)
    complete[3:14, 5:20, 2:12] = 1
    implant = np.zeros_like(complete)
    implant[4:6, 6:9, 2:5] = 1
    spacing = (volumes.SKULLFIX_SPACING,) * 3
    frame = volumes.skullfix_frame(volumes.Volume.of(complete, spacing), Path("x"))
    whole = frame.apply(complete)
    assert whole.shape == (32, 32, 32)
    assert whole.sum() == complete.sum()
    # 11, 15 and 10 voxels: centred in x and y, the odd one after; in z all padding is at the end.
    assert whole[10:21, 8:23, 0:10].all()
    assert frame.apply(implant)[11:13, 9:12, 0:3].all()
    assert frame.apply(implant).sum() == implant.sum()


def test_skullfix_is_resampled_unless_its_spacing_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(volumes, "SIDE", 32)
    complete = np.ones((8, 8, 8), dtype=np.uint8)
    finer = volumes.skullfix_frame(volumes.Volume.of(complete, (0.9, 0.9, 0.9)), Path("x"))
    assert finer.zoom == (2.0, 2.0, 2.0)
    unknown = volumes.skullfix_frame(volumes.Volume.of(complete, (0.9, 0.9, 0.0)), Path("x"))
    assert unknown.zoom == (1.0, 1.0, 1.0)


def test_skullfix_volumes_that_cannot_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes, "SIDE", 4)
    full = volumes.Volume.of(np.ones((6, 6, 6), dtype=np.uint8), (0.45, 0.45, 0.45))
    with pytest.raises(DataError, match="at most 4 fit"):
        volumes.skullfix_frame(full, Path("x"))
    empty = volumes.Volume.of(np.zeros((6, 6, 6), dtype=np.uint8), (0.45, 0.45, 0.45))
    with pytest.raises(DataError, match="has no voxels"):
        volumes.skullfix_frame(empty, Path("x"))
