"""overt/commands/complete/implant.py: volumes of sampled points."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_PCDIFF

from overt.commands.complete.implant import make_volumes
from overt.commands.complete.result import Clock
from overt.commands.complete.skull import Skull
from overt.data.skulls.lists import Cloud
from overt.data.skulls.prepare import cloud_of
from overt.data.skulls.volumes import Volume, cloud_frame
from overt.recipes.pcdiff.recipe import Completion

PLATE_MM = (40, 40, 6)


def plate(voxel_mm: float) -> np.ndarray:
    """Return a plate with 8 mm around it."""
    sizes = (round(length / voxel_mm) for length in PLATE_MM)
    return np.pad(np.ones(tuple(sizes), dtype=bool), round(8 / voxel_mm))


@pytest.mark.parametrize("scan_mm", [2.0, 1.0, 0.5])
def test_a_wall_is_as_thick_whatever_the_voxels_of_the_scan(scan_mm: float, tmp_path: Path) -> None:
    """A perfect model samples points of clouds of its training data, made in voxels of 2 mm."""
    config = SMALL_PCDIFF.config(tmp_path, "data.synthetic.side=100")
    rng = np.random.default_rng(0)
    points = (cloud_of(plate(2.0), 3000, rng, tmp_path) + 0.5) * 2.0 / scan_mm - 0.5
    true = plate(scan_mm)
    scan = Volume.of(np.zeros_like(true), (scan_mm,) * 3)
    skull = Skull(scan, "a mask", points, cloud_frame(scan))
    known = Cloud(points.astype(np.float32), np.zeros((1, 3)), np.ones((1, 1)))
    implants = torch.from_numpy(points.astype(np.float32))[None]
    (volume,) = make_volumes(config, skull, Completion(known, implants), None, Clock())
    assert volume.sum() / true.sum() == pytest.approx(1.0, abs=0.05)
