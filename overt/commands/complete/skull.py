"""A defective skull: bone of a scan, and the cloud of points that a network sees."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.commands.complete.options import refuse_volume_options
from overt.config import Config
from overt.errors import DataError
from overt.files.bounds import open_arrays

if TYPE_CHECKING:
    from overt.data.skulls.volumes import CloudFrame, Volume

CLOUD_FACTOR = 2  # points on a volume's surface for each one that is drawn
CLOSE_UP_FACTOR = 10  # the same for a close-up, which shows a part of the surface

Points = NDArray[np.floating[Any]]


class Skull(NamedTuple):
    """A defective skull as the network's input, and the transform back to the patient."""

    volume: Volume | None  # of booleans; None for a cloud
    how: str
    cloud: Points  # (points, 3)
    frame: CloudFrame | None

    def to_patient(self, cloud: Points) -> Points:
        if self.volume is None or self.frame is None:
            return cloud
        return self.volume.to_patient(self.frame.to_indices(cloud))


def read_bone(options: argparse.Namespace) -> tuple[Volume, str]:
    """Return the bone of a scan and what its values were taken for."""
    from overt.data.skulls.bone import find_bone
    from overt.data.skulls.scans import read_scan

    spacing = None if options.spacing is None else tuple(options.spacing)
    scan = read_scan(options.scan, spacing)
    bone = find_bone(scan, str(options.scan), options.threshold)
    if not bone[0].values.any():
        raise DataError(f"{options.scan} holds no bone: all its voxels are empty")
    return bone


def read_skull(options: argparse.Namespace, config: Config) -> Skull:
    """Return a defective skull as a cloud, and as a volume where it is one."""
    from overt.data.skulls.lists import load_cloud
    from overt.data.skulls.prepare import cloud_of
    from overt.data.skulls.volumes import cloud_frame

    path = options.scan
    required_points = getattr(config.settings.data, "num_known_points", 1)
    if path.suffix.lower() == ".npy" and options.spacing is None:
        if not path.is_file():
            raise DataError(f"no skull at {path}; check the path")
        refuse_volume(path)
        refuse_volume_options(options)
        return Skull(None, "a cloud of points", load_cloud(path, required_points), None)
    volume, how = read_bone(options)
    frame = cloud_frame(volume, axes_of(config))
    is_close_up = getattr(config.settings.evaluation, "close_up", False)
    points = required_points * (CLOSE_UP_FACTOR if is_close_up else CLOUD_FACTOR)
    cloud = cloud_of(volume.mask, points, np.random.default_rng(0), path, frame)
    return Skull(volume, how, cloud, frame)


def refuse_volume(path: Path) -> None:
    """Raise an error that names the missing option if an array is a volume."""
    try:
        shape = open_arrays(path, mapped=True).shape
    except (ValueError, OSError, EOFError):
        return  # whoever reads it as a cloud says what is wrong
    if len(shape) == 3:
        raise DataError(
            f"{path} holds a volume of shape {shape}: give its voxels in mm by --spacing MM MM MM. "
            "A cloud of points has the shape (points, 3)"
        )


def axes_of(config: Config) -> str:
    """Return the axis orientation of the clouds that a model was trained on."""
    axes: str | None = getattr(config.settings.data, "axes", None)
    return (axes or "LPS").upper()
