"""overt/commands/complete/implant.py: volumes of sampled points."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_PCDIFF

from overt.commands.complete.implant import along_scan, make_volumes
from overt.commands.complete.result import Clock
from overt.commands.complete.skull import Skull
from overt.data.skulls.lists import Cloud
from overt.data.skulls.prepare import cloud_of
from overt.data.skulls.volumes import Spacing, Volume, cloud_frame
from overt.recipes.pcdiff.recipe import Completion

PLATE_MM = (40, 40, 6)


def plate(voxel_mm: float) -> np.ndarray:
    """Return a plate with 8 mm around it."""
    sizes = (round(length / voxel_mm) for length in PLATE_MM)
    return np.pad(np.ones(tuple(sizes), dtype=bool), round(8 / voxel_mm))


def completed(scan_mm: float, folder: Path, made_in: Spacing | None) -> float:
    """Return the volume of a perfect model's implant over the true one.

    It samples points of clouds of its training data, made in voxels of 2 mm.
    """
    config = SMALL_PCDIFF.config(folder)
    rng = np.random.default_rng(0)
    points = (cloud_of(plate(2.0), 3000, rng, folder) + 0.5) * 2.0 / scan_mm - 0.5
    true = plate(scan_mm)
    scan = Volume.of(np.zeros_like(true), (scan_mm,) * 3)
    skull = Skull(scan, "a mask", points, cloud_frame(scan))
    known = Cloud(points.astype(np.float32), np.zeros((1, 3)), np.ones((1, 1)))
    implants = torch.from_numpy(points.astype(np.float32))[None]
    completion = Completion(known, implants, made_in)
    (volume,) = make_volumes(config, skull, completion, None, Clock())
    return float(volume.sum() / true.sum())


@pytest.mark.parametrize("scan_mm", [2.0, 1.0, 0.5])
def test_a_wall_is_as_thick_whatever_the_voxels_of_the_scan(scan_mm: float, tmp_path: Path) -> None:
    assert completed(scan_mm, tmp_path, (2.0, 2.0, 2.0)) == pytest.approx(1.0, abs=0.05)


def test_without_the_voxels_of_training_those_of_the_scan_are_taken_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert completed(1.0, tmp_path, None) > 1.2
    assert "does not record the voxels" in caplog.text


def test_sizes_along_the_axes_of_clouds_follow_those_of_the_scan() -> None:
    """The first axis of the scan goes up, the second to the left, the third to the front."""
    affine = np.zeros((4, 4))
    affine[[2, 0, 1, 3], [0, 1, 2, 3]] = 0.5, 0.8, -0.9, 1.0
    frame = cloud_frame(Volume(np.zeros((2, 2, 2)), affine), "LPS")
    assert along_scan((1.0, 2.0, 3.0), frame) == (3.0, 1.0, 2.0)
    assert along_scan(None, frame) is None
