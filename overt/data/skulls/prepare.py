"""Prepare a folder of volumes for training: clouds next to them, and seeded lists of skulls.

Files are written atomically and complete files are kept, so an interrupted preparation resumes
where it stopped. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.data.making import map_in_processes
from overt.data.skulls.lists import DEFECTS, SUFFIX, Points, SkullItem, cloud_problem
from overt.data.skulls.nrrd import read_nrrd
from overt.data.skulls.surfaces import sample_surface, surface_triangles
from overt.data.skulls.volumes import CloudFrame, Volume, cloud_frame, skullfix_frame
from overt.errors import DataError
from overt.files.atomic import new_file
from overt.progress import report

TRAIN_FRACTION = 0.8
LISTS = ("train.csv", "test.csv")


class Prepared(NamedTuple):
    """Outcome of the preparation of a folder."""

    written: int
    kept: int  # clouds that were there
    problems: list[str]


def prepare(
    root: Path,
    dataset: str,
    points: int = 400_000,
    seed: int = 42,
    workers: int = 0,
    force: bool = False,
) -> Prepared:
    """Write a cloud of `points` for every volume below `root`, and the two lists if missing."""
    skulls = sorted((root / "complete_skull").glob("*.nrrd"))
    if not skulls:
        raise DataError(
            f"{root / 'complete_skull'} holds no volumes (*.nrrd); expected complete_skull, "
            "defective_skull and implant as the data set is published"
        )
    work = partial(prepare_skull, dataset=dataset, points=points, seed=seed, force=force)
    written, skipped, problems = 0, 0, []
    for number, done in enumerate(map_in_processes(work, skulls, workers), start=1):
        written += done.written
        skipped += done.kept
        problems += done.problems
        report("preparing skulls", number, len(skulls))
    write_lists(root, [path.stem for path in skulls], seed)
    return Prepared(written, skipped, problems)


def prepare_skull(complete: Path, dataset: str, points: int, seed: int, force: bool) -> Prepared:
    """Write the clouds of one skull: complete, and defective skull and implant per defect.

    Errors of a volume are recorded, and the others are processed.
    """
    root, name = complete.parent.parent, complete.name
    volumes = [complete] + [
        root / part / defect / name
        for part in ("defective_skull", "implant")
        for defect in DEFECTS[dataset]
    ]
    targets = [path.with_name(f"{path.stem}{SUFFIX}.npy") for path in volumes]
    due = [
        (path, target)
        for path, target in zip(volumes, targets, strict=True)
        if force or not target.is_file() or cloud_problem(target, points) is not None
    ]
    problems = []
    if due:
        try:
            complete_volume = read_nrrd(complete)
            frame = skullfix_frame(complete_volume, complete) if dataset == "skullfix" else None
        except DataError as error:
            return Prepared(0, len(volumes) - len(due), [str(error)])
        for path, target in due:
            try:
                volume = _same_shape(path, complete_volume)
                mask = volume.mask if frame is None else frame.apply(volume.values)
                coordinates = None if frame is not None else cloud_frame(complete_volume)
                # Every file has its own stream, so neither order nor workers change a cloud.
                key = (seed, int.from_bytes(str(target.relative_to(root)).encode(), "little"))
                cloud = cloud_of(mask, points, np.random.default_rng(key), path, coordinates)
                save_cloud(target, cloud)
            except DataError as error:
                problems.append(str(error))
    return Prepared(len(due) - len(problems), len(volumes) - len(due), problems)


def _same_shape(path: Path, reference: Volume) -> Volume:
    volume = read_nrrd(path)
    if volume.values.shape != reference.values.shape:
        raise DataError(
            f"{path}: a volume of shape {volume.values.shape}, but the complete skull has "
            f"{reference.values.shape}; all volumes of a skull have one shape"
        )
    return volume


def cloud_of(
    mask: NDArray[np.bool_],
    points: int,
    rng: np.random.Generator,
    path: Path,
    frame: CloudFrame | None = None,
) -> Points:
    """Return points on the surface of a mask, evenly spaced in the coordinates of clouds.

    Without a frame these are voxels.
    """
    if not mask.any():
        raise DataError(f"{path}: the volume has no voxels (no value above 0); remove it")
    triangles = surface_triangles(mask)
    if not len(triangles):
        raise DataError(f"{path}: the volume is full, so it has no surface; remove it")
    if frame is not None:
        triangles = np.asarray(frame.to_cloud(triangles), dtype=np.float64)
    return sample_surface(triangles, points, rng)


def save_cloud(target: Path, cloud: Points) -> None:
    """Write a cloud in float32, atomically."""
    with new_file(target) as hidden, hidden.open("wb") as file:
        np.save(file, cloud.astype(np.float32))


def write_lists(root: Path, names: list[str], seed: int, replace: bool = False) -> None:
    """Write train.csv and test.csv by a seeded shuffle, 80 to 20; existing lists stay, unless
    they are to be replaced."""
    order = np.random.default_rng(seed).permutation(len(names))
    split = min(max(round(TRAIN_FRACTION * len(names)), 1), max(len(names) - 1, 1))
    for file, part in zip(LISTS, (order[:split], order[split:]), strict=True):
        target = root / file
        if replace or not target.exists():
            rows = (f"complete_skull/{names[number]}{SUFFIX}.npy\n" for number in sorted(part))
            # Replaced atomically: another process may be training from it.
            with new_file(target) as hidden:
                hidden.write_text("".join(rows))


class CaseVolumes(NamedTuple):
    """A defective skull and its implant in the grid of their files."""

    skull: NDArray[np.bool_]
    implant: NDArray[np.bool_]
    spacing: tuple[float, float, float]  # mm
    to_indices: Callable[[Points], Points]  # of this grid, from the coordinates of clouds


def load_case(item: SkullItem, dataset: str) -> CaseVolumes:
    """Read the volumes of a case; SkullFix is also scored in its own grid, as published."""
    skull, implant = (read_nrrd(item.volume(part)) for part in ("skull", "implant"))
    if skull.values.shape != implant.values.shape:
        raise DataError(
            f"{item.volume('implant')}: a volume of shape {implant.values.shape}, but the skull's "
            f"is {skull.values.shape}; all volumes of a skull have one shape"
        )
    to_indices: Callable[[Points], Points] = cloud_frame(skull).to_indices
    if dataset == "skullfix":
        path = item.volume("skull")
        complete = path.parents[1] / "complete_skull" / path.name
        to_indices = skullfix_frame(read_nrrd(complete), complete).to_indices
    return CaseVolumes(skull.mask, implant.mask, skull.spacing, to_indices)
