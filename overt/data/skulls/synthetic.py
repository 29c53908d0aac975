"""Writes synthetic skulls in the layout of SkullBreak, to train and test without a download.

A skull is a bumpy shell with an opening below; a defect is what a ball takes out of it, and the
implant is what was taken out. Volumes, clouds and lists are those that real skulls have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overt.data.making import claim_folder
from overt.data.skulls.lists import DEFECTS, SUFFIX
from overt.data.skulls.prepare import cloud_of, save_cloud, write_lists
from overt.data.skulls.volumes import Volume, write_nrrd

HEAD_MM = 200.0  # the length of the volume, whatever its voxels
_FORMAT = 1  # counts up when the same settings come to mean other volumes

# Where the defects of each kind are, as a direction from the middle (x right, y back, z up), and
# their size as a part of the head.
_PLACES = {
    "bilateral": ((0.0, 0.0, 1.0), 0.30),
    "frontoorbital": ((0.0, -1.0, 0.45), 0.27),
    "parietotemporal": ((1.0, 0.2, 0.6), 0.28),
    "random_1": (None, 0.25),
    "random_2": (None, 0.25),
}

Mask = NDArray[np.bool_]


def write_skulls(
    root: Path | str,
    count: int,
    side: int = 64,
    points: int = 8000,
    seed: int = 0,
    report: Callable[[int], None] | None = None,
) -> int:
    """Make sure that `root` holds skulls 0 to `count` - 1 with five defects each; how many it made.

    A skull depends on the settings and its number only. `side` is the number of voxels along a
    side of the volumes, `points` that of the points of a cloud.
    """
    root = Path(root)
    settings = {"format": _FORMAT, "side": side, "points": points, "seed": seed}
    claim_folder(root, settings, "skulls")
    names = [f"{number:03d}" for number in range(count)]
    written = 0
    for number, name in enumerate(names):
        # The complete skull is written last: where it is, the rest is too.
        if not (root / "complete_skull" / f"{name}{SUFFIX}.npy").is_file():
            _write_skull(root, name, np.random.default_rng((seed, number)), side, points)
            written += 1
        if report is not None:
            report(number + 1)
    write_lists(root, names, seed, replace=written > 0)
    return written


def _write_skull(root: Path, name: str, rng: np.random.Generator, side: int, points: int) -> None:
    spacing = (HEAD_MM / side,) * 3
    complete = make_skull(rng, side)

    def write(mask: Mask, *folders: str) -> None:
        volume = root.joinpath(*folders, f"{name}.nrrd")
        write_nrrd(volume, Volume(mask, spacing))
        save_cloud(volume.with_name(f"{name}{SUFFIX}.npy"), cloud_of(mask, points, rng, volume))

    for defect in DEFECTS["skullbreak"]:
        implant = make_implant(complete, defect, rng)
        write(complete & ~implant, "defective_skull", defect)
        write(implant, "implant", defect)
    write(complete, "complete_skull")


def _directions(side: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of every voxel: how far from the middle, as a part of the side, and in which direction."""
    places = (np.indices((side, side, side)) + 0.5) / side - 0.5  # (3, x, y, z)
    distance = np.sqrt((places**2).sum(axis=0))
    return distance, places / np.maximum(distance, 1e-9)


def make_skull(rng: np.random.Generator, side: int) -> Mask:
    """A shell about an ellipsoid with gentle bumps, open below."""
    distance, direction = _directions(side)
    axes = np.array([0.34, 0.42, 0.37]) * rng.uniform(0.92, 1.06, 3)
    radius = 1 / np.sqrt((direction**2 / axes[:, None, None, None] ** 2).sum(axis=0))
    for _ in range(4):
        wave = rng.normal(size=3)
        wave *= rng.uniform(2.0, 4.0) / np.linalg.norm(wave)
        phase = np.tensordot(wave, direction, axes=1) + rng.uniform(0, 2 * np.pi)
        radius = radius * (1 + 0.012 * np.sin(phase))
    # At least two voxels and a half: a thinner wall would have holes.
    thickness = max(0.035 * rng.uniform(0.9, 1.2), 2.5 / side)
    below = direction[2] < -0.55
    return np.asarray((distance < radius) & (distance > radius - thickness) & ~below)


def make_implant(complete: Mask, defect: str, rng: np.random.Generator) -> Mask:
    """What a ball of the defect's kind takes out of the skull."""
    side = len(complete)
    place, size = _PLACES[defect]
    if place is None:
        toward = rng.normal(size=3)
        toward[2] = abs(toward[2]) + 0.2
    else:
        toward = np.array(place) + 0.15 * rng.normal(size=3)
    toward /= np.linalg.norm(toward)
    voxels = np.argwhere(complete)
    centred = (voxels + 0.5) / side - 0.5
    norms = np.linalg.norm(centred, axis=1)
    # The ball sits on the wall: on the voxel that lies most in this direction.
    seat = centred[np.argmax(centred @ toward / norms)]
    radius = size * rng.uniform(0.85, 1.1)
    taken = ((centred - seat) ** 2).sum(axis=1) < radius**2
    implant = np.zeros_like(complete)
    implant[tuple(voxels[taken].T)] = True
    return implant
