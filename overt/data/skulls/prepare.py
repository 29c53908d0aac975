"""Prepare a folder of volumes for training: clouds next to them, and seeded lists of skulls.

Files are written atomically and complete files are kept, so an interrupted preparation resumes
where it stopped. Never imports torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.data.making import map_in_processes
from overt.data.skulls.lists import (
    DEFECTS,
    SUFFIX,
    Points,
    SkullItem,
    cloud_problem,
    names_in_list,
    other_layout,
)
from overt.data.skulls.nrrd import names_axes, read_affine, read_nrrd
from overt.data.skulls.surfaces import sample_surface, surface_triangles
from overt.data.skulls.volumes import (
    SKULLFIX_SPACING,
    CloudFrame,
    Frame,
    Matrix,
    Spacing,
    Volume,
    cloud_frame,
    skullfix_frame,
)
from overt.errors import DataError
from overt.files.atomic import new_file
from overt.geometry.solid import solid_of_votes
from overt.progress import report

TRAIN_FRACTION = 0.8
LISTS = ("train.csv", "test.csv")
# By which axes of one skull's volumes may differ, relative to a voxel: half a voxel across 512.
AXES_TOLERANCE = 1e-3

logger = logging.getLogger(__name__)


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
    skulls = sorted((root / "complete_skull").glob("[!.]*.nrrd"))
    if not skulls:
        raise DataError(
            f"{root / 'complete_skull'} holds no volumes (*.nrrd); expected complete_skull, "
            "defective_skull and implant as the data set is published"
        )
    other = other_layout(root, dataset)
    if other is not None:
        raise DataError(
            f"{root / 'defective_skull'} has the layout of {other}, not of {dataset}; use "
            f"--dataset {other} (and data.dataset={other} in training)"
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
                volume = read_nrrd(path)
                _check_same_grid(volume, path, _grid_of(complete_volume), complete)
                mask = volume.mask if frame is None else frame.apply(volume.values)
                coordinates = None if frame is not None else cloud_frame(complete_volume)
                # Every file has its own stream, so neither order nor workers change a cloud.
                key = (seed, int.from_bytes(str(target.relative_to(root)).encode(), "little"))
                cloud = cloud_of(mask, points, np.random.default_rng(key), path, coordinates)
                save_cloud(target, cloud)
            except DataError as error:
                problems.append(str(error))
    return Prepared(len(due) - len(problems), len(volumes) - len(due), problems)


class _Grid(NamedTuple):
    """Shape and axes of a volume."""

    shape: tuple[int, ...]
    axes: Matrix  # (3, 3) in LPS and mm, a column for each axis of the array


def _grid_of(volume: Volume) -> _Grid:
    return _Grid(volume.values.shape, volume.affine[:3, :3])


def _check_same_grid(volume: Volume, path: Path, expected: _Grid, other: Path) -> None:
    """Reject a volume with another shape, spacing or direction than the one at `other`.

    Clouds are in voxels, so other axes would mirror or scale one part of a skull only. Origins may
    differ, as in published files.
    """
    grid = _grid_of(volume)
    if grid.shape != expected.shape:
        raise DataError(
            f"{path}: a volume of shape {grid.shape}, but {other} has {expected.shape}; all "
            "volumes of a skull have one shape"
        )
    voxel = np.linalg.norm(expected.axes, axis=0)
    # NaN is not within the tolerance either.
    differ = not (np.abs(grid.axes - expected.axes) <= AXES_TOLERANCE * voxel).all()
    # Without axes in a header nothing can be compared. An identity does not tell: it is also that
    # of voxels of 1 mm.
    if differ and names_axes(path) and names_axes(other):
        raise DataError(
            f"{path}: axes {_axes_text(grid.axes)}, but {other} has {_axes_text(expected.axes)} "
            "(mm per voxel in LPS); all volumes of a skull have the same directions and spacing. "
            "Resample it to the other's grid, for example in 3D Slicer, or correct the wrong header"
        )


def _axes_text(axes: Matrix) -> str:
    return " ".join(f"({','.join(f'{step + 0.0:g}' for step in axis)})" for axis in axes.T)


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


def write_lists(root: Path, names: list[str], seed: int, added: Collection[str] = ()) -> None:
    """Write train.csv and test.csv by a seeded shuffle, 80 to 20; existing rows stay.

    A list that alone is missing gets the skulls that the other one lacks. Of existing lists, only
    the `added` skulls are appended, so that 80 to 20 is reached or approached again.
    """
    targets = [root / file for file in LISTS]
    exists = [target.exists() for target in targets]
    listed = [names_in_list(target) if target.exists() else [] for target in targets]
    used = {name for rows in listed for name in rows}
    order = (names[index] for index in np.random.default_rng(seed).permutation(len(names)))
    unlisted = [name for name in order if name not in used]
    to_split = [name for name in unlisted if name in added or not any(exists)]
    others = [name for name in unlisted if name not in to_split]
    new: list[list[str]] = [[], []]
    if any(exists) and not all(exists):
        new[exists.index(False)], others = others, []
    in_train, in_test = (len(old) + len(rows) for old, rows in zip(listed, new, strict=True))
    total = in_train + in_test + len(to_split)
    split = min(max(round(TRAIN_FRACTION * total), 1), max(total - 1, 1))
    first_of_test = min(max(split - in_train, 0), len(to_split))
    new[0] += to_split[:first_of_test]
    new[1] += to_split[first_of_test:]
    for target, is_there, rows in zip(targets, exists, new, strict=True):
        if rows or not is_there:
            append_rows(target, [name for name in names if name in rows])
            if not rows:
                logger.warning(
                    "%s is empty: %s. Add skulls, or use another list: data.test_list=train.csv "
                    "scores training skulls",
                    target,
                    "one skull cannot be split" if total == 1 else "all skulls are in the other",
                )
    if others:
        logger.warning(
            "%s: %d of %d skulls are in neither train.csv nor test.csv, so they are not used; add "
            "rows, or remove both lists to split all skulls again",
            root,
            len(others),
            len(names),
        )


def append_rows(target: Path, names: Iterable[str]) -> None:
    """Append skulls to a list, which may be missing; rows that are there stay as they are."""
    text = target.read_text() if target.exists() else ""
    text += "" if not text or text.endswith("\n") else "\n"
    # Replaced atomically: another process may be training from it.
    with new_file(target) as hidden:
        hidden.write_text(text + "".join(f"complete_skull/{name}{SUFFIX}.npy\n" for name in names))


class CaseVolumes(NamedTuple):
    """A defective skull and its implant in the grid of their files."""

    skull: NDArray[np.bool_]
    implant: NDArray[np.bool_]
    spacing: Spacing  # mm
    to_indices: Callable[[Points], Points]  # of this grid, from the coordinates of clouds
    cloud_spacing: Spacing  # mm of the voxels that clouds were made in

    def solid(
        self, clouds: Points, ball_mm: float, cloud_spacing: Spacing | None = None
    ) -> NDArray[np.bool_]:
        """Return the vote of clouds (n, P, 3) as a volume.

        `cloud_spacing` is that of the clouds, if they were not made of these volumes.
        """
        made_in = self.cloud_spacing if cloud_spacing is None else cloud_spacing
        indices = self.to_indices(clouds)
        return solid_of_votes(indices, self.skull, self.spacing, ball_mm, made_in)


def load_case(item: SkullItem, dataset: str) -> CaseVolumes:
    """Read the volumes of a case; SkullFix is also scored in its own grid, as published."""
    paths = [item.volume(part) for part in ("skull", "implant")]
    skull, implant = map(read_nrrd, paths)
    _check_same_grid(implant, paths[1], _grid_of(skull), paths[0])
    complete = paths[0].parents[1 if dataset == "skullfix" else 2] / "complete_skull"
    complete /= paths[0].name
    to_indices: Callable[[Points], Points]
    if dataset == "skullfix":
        frame, grid = _complete_frame(complete, _last_change(complete))
        _check_same_grid(skull, paths[0], grid, complete)
        to_indices, cloud_spacing = frame.to_indices, (SKULLFIX_SPACING,) * 3
    else:
        # Clouds were made in the coordinates of the complete skull. Only one of the two headers may
        # have axes, and scoring does not need the complete skull itself.
        affine = read_affine(complete) if complete.is_file() else skull.affine
        to_indices = cloud_frame(Volume(skull.values, affine)).to_indices
        cloud_spacing = skull.spacing
    return CaseVolumes(skull.mask, implant.mask, skull.spacing, to_indices, cloud_spacing)


def _last_change(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0  # read_nrrd names a missing file


@lru_cache(maxsize=4096)
def _complete_frame(complete: Path, last_change: int) -> tuple[Frame, _Grid]:
    """Return the conversion and the grid of a complete SkullFix volume.

    The conversion resamples the volume, seconds for a large one, so it is kept for later epochs.
    """
    volume = read_nrrd(complete)
    return skullfix_frame(volume, complete), _grid_of(volume)
