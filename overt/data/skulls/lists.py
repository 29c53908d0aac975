"""SkullBreak and SkullFix as point clouds: lists of skulls, files, and normalized samples.

    ROOT/complete_skull/NNN.nrrd                 each row of a list is one complete skull
    ROOT/defective_skull/[DEFECT/]NNN_surf.npy   (points, 3), in voxels; SkullFix has no DEFECT
    ROOT/implant/[DEFECT/]NNN_surf.npy

`overt data prepare` makes the clouds from the volumes next to them. Never imports torch.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError
from overt.files.bounds import open_arrays

DEFECTS = {
    "skullbreak": ("bilateral", "frontoorbital", "parietotemporal", "random_1", "random_2"),
    "skullfix": ("",),
}
DATASETS = tuple(DEFECTS)
SUFFIX = "_surf"
SAMPLES_COMMAND = "overt data implants ROOT --checkpoint C"
HALF_EXTENT = 3.0  # the longest axis of a normalized cloud spans -3 to 3

Points = NDArray[np.floating[Any]]  # (points, 3)


class Cloud(NamedTuple):
    """A normalized cloud; `points * scale + shift` are its original coordinates."""

    points: NDArray[np.float32]  # (N, 3)
    shift: Points  # (1, 3)
    scale: Points  # (1, 1)


def normalized_cloud(points: Points, box: Points | None = None) -> Cloud:
    """Center the bounding box at 0 and scale its longest side to -3 to 3."""
    box = points if box is None else box
    low, high = box.min(axis=0), box.max(axis=0)
    shift = ((low + high) / 2).reshape(1, 3)
    scale = ((high - low).max() / 2 / HALF_EXTENT).reshape(1, 1)
    if scale <= 0:
        raise DataError("all points of a cloud are at one position; it cannot be normalized")
    return Cloud(((points - shift) / scale).astype(np.float32), shift, scale)


def rotation_matrix(angles: Sequence[float] | Points) -> NDArray[np.float64]:
    """Return Rx(a) Ry(b) Rz(c) of three angles in radians, right-handed."""
    rotation = np.eye(3)
    for axis, angle in enumerate(angles):
        # The plane of the other two axes, in cyclic order.
        first, second = (axis + 1) % 3, (axis + 2) % 3
        turn = np.eye(3)
        turn[first, first] = turn[second, second] = np.cos(angle)
        turn[second, first] = np.sin(angle)
        turn[first, second] = -np.sin(angle)
        rotation = rotation @ turn
    return rotation


def training_cloud(
    known: Points,
    implant: Points,
    rotation: NDArray[np.float64] | None = None,
    known_box: bool = False,
) -> Cloud:
    """Return known points, then the implant's, rotated about their mean and normalized.

    The bounding box is that of all points, as published, or of the known ones, as in sampling.
    """
    points = np.concatenate([known, implant])
    if rotation is not None:
        mean = points.mean(axis=0)
        points = ((points - mean) @ rotation.T + mean).astype(points.dtype)
    return normalized_cloud(points, points[: len(known)] if known_box else None)


def known_cloud(known: Points) -> Cloud:
    """A defective skull without its implant."""
    return normalized_cloud(known)


@dataclass(frozen=True)
class SkullItem:
    """A defective skull and its implant."""

    name: str  # such as bilateral000_surf
    skull: Path
    implant: Path

    def volume(self, part: str) -> Path:
        """Return the volume next to a cloud: `skull` or `implant`."""
        cloud: Path = getattr(self, part)
        return cloud.with_name(cloud.name.removesuffix(f"{SUFFIX}.npy") + ".nrrd")

    @property
    def samples(self) -> Path:
        """Return the file with implants that a trained model sampled: NNN_implants.npy."""
        return self.skull.with_name(f"{self.volume('skull').stem}_implants.npy")

    @property
    def mirror(self) -> Path:
        """Return the file with the reflection of the skull: NNN_mirror.npy."""
        return self.skull.with_name(f"{self.volume('skull').stem}_mirror.npy")


class SkullList:
    """Return the items of a list, for SkullBreak five per row, in the order of the rows."""

    def __init__(self, path: Path | str, dataset: str) -> None:
        self.path = Path(path)
        self.dataset = dataset
        skulls = read_list(self.path)
        self.roots = list(dict.fromkeys(root for root, _ in skulls))
        self.items = [
            item_of(root, dataset, defect, number)
            for root, number in skulls
            for defect in DEFECTS[dataset]
        ]

    def __len__(self) -> int:
        return len(self.items)

    def check(self, skull_points: int, implant_points: int) -> None:
        """Reject missing files and clouds of the wrong shape or size, listing all of them."""
        missing = {
            cloud: item.volume(part)
            for item in self.items
            for part, cloud in (("skull", item.skull), ("implant", item.implant))
            if not cloud.is_file()
        }
        if missing:
            raise DataError(self._describe_missing(missing))
        wrong = [
            problem
            for item in self.items
            for path, required_points in (
                (item.skull, skull_points),
                (item.implant, implant_points),
            )
            if (problem := cloud_problem(path, required_points)) is not None
        ]
        if wrong:
            raise DataError(
                f"{self.path}: {len(wrong)} clouds cannot be used:\n  "
                + "\n  ".join(wrong)
                + f"\nMake them again by `{self._prepare_command()} --points "
                f"{max(skull_points, implant_points)}` (or more), or ask for fewer points "
                "(data.num_points, data.num_implant_points)."
            )

    def _prepare_command(self) -> str:
        option = "" if self.dataset == DATASETS[0] else f" --dataset {self.dataset}"
        return f"overt data prepare ROOT{option}"

    def _describe_missing(self, volumes: dict[Path, Path]) -> str:
        """List missing clouds, given with their volumes; say what to do about each kind."""
        lines = [f"{self.path}: {len(volumes)} of {2 * len(self)} clouds are missing:"]
        without_volume = 0
        for cloud, volume in volumes.items():
            is_lost = not volume.is_file()
            without_volume += is_lost
            lines.append(f"  {cloud}" + (f" (its volume {volume.name} too)" if is_lost else ""))
        other = next(filter(None, (other_layout(root, self.dataset) for root in self.roots)), None)
        if other is not None:
            lines.append(
                f"The folder has the layout of {other}: set data.dataset={other}, and use "
                f"`--dataset {other}` with `overt data prepare`."
            )
        elif without_volume:
            lines.append(
                f"{without_volume} of them have no volume beside them: copy it from the data set, "
                f"then run `{self._prepare_command()}`, or remove the rows from the list."
            )
        else:
            lines.append(
                f"Make clouds of the volumes by `{self._prepare_command()}`, or remove the rows "
                "from the list."
            )
        return "\n".join(lines)


def other_layout(root: Path, dataset: str) -> str | None:
    """Return the data set whose layout `root` has, if it is not that of `dataset`."""
    folder = root / "defective_skull"
    layouts = {
        "skullbreak": any((folder / defect).is_dir() for defect in DEFECTS["skullbreak"]),
        "skullfix": any(
            next(folder.glob(name), None) is not None for name in ("*.nrrd", f"*{SUFFIX}.npy")
        ),
    }
    # A folder with both layouts, or with neither, does not tell.
    matches = [name for name, is_there in layouts.items() if is_there]
    return matches[0] if len(matches) == 1 and matches[0] != dataset else None


def read_list(path: Path) -> list[tuple[Path, str]]:
    """Return the data set folder and the skull number of every row of a CSV list.

    A row is the path of `complete_skull/NNN.nrrd` or `complete_skull/NNN_surf.npy`, absolute or
    relative to the list.
    """
    rows = _read_rows(path)
    if not rows:
        raise DataError(
            f"the list of skulls {path} is empty; expected a path in each row. One skull cannot be "
            "split: add skulls and rows, or use another list, such as data.test_list=train.csv to "
            "score training skulls"
        )
    skulls = []
    for index, row in enumerate(rows):
        skull = path.parent / row  # an absolute row stays as it is
        name = _name_of(skull)
        if name == skull.name or skull.parent.name != "complete_skull":
            raise DataError(
                f"{path}, row {index + 1}: {row!r}; expected complete_skull/NNN.nrrd or "
                f"complete_skull/NNN{SUFFIX}.npy, with or without the folder before it"
            )
        skulls.append((skull.parent.parent, name))
    return skulls


def names_in_list(path: Path) -> list[str]:
    """Return the skull number of every row, of a list that may be empty."""
    return [_name_of(Path(row)) for row in _read_rows(path)]


def _name_of(skull: Path) -> str:
    return skull.name.removesuffix(".nrrd").removesuffix(f"{SUFFIX}.npy")


def _read_rows(path: Path) -> list[str]:
    try:
        with path.open(newline="") as file:
            return [row[0].strip() for row in csv.reader(file) if row and row[0].strip()]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"the list of skulls {path} cannot be read ({error}); `overt data prepare ROOT` writes "
            "train.csv and test.csv, or name yours by data.train_list and data.test_list"
        ) from error


def item_of(root: Path, dataset: str, defect: str, number: str) -> SkullItem:
    """Return the files of one defect of one skull."""
    file = f"{number}{SUFFIX}.npy"
    return SkullItem(
        f"{defect}{number}{SUFFIX}",
        root / "defective_skull" / defect / file,
        root / "implant" / defect / file,
    )


def cloud_problem(path: Path, required_points: int) -> str | None:
    """Return what is wrong with a cloud's file, judging by its header."""
    try:
        cloud = open_arrays(path, mapped=True)
    except Exception as error:  # a damaged header stops numpy with almost any: SyntaxError, ...
        return f"{path}: not a readable array ({type(error).__name__}: {error})"
    if cloud.ndim != 2 or cloud.shape[1] != 3 or not np.issubdtype(cloud.dtype, np.floating):
        return f"{path}: {cloud.dtype} {cloud.shape}; expected floats of shape (points, 3)"
    if len(cloud) < required_points:
        return f"{path}: {len(cloud)} points, expected at least {required_points}"
    return None


def load_cloud(path: Path, required_points: int = 1) -> Points:
    """Return a memory-mapped cloud: only the parts that are used are read."""
    problem = cloud_problem(path, required_points)
    if problem is not None:
        raise DataError(problem)
    cloud: Points = open_arrays(path, mapped=True)
    return cloud


def check_samples(items: Sequence[SkullItem]) -> None:
    """Reject skulls without sampled implants, and files of the wrong shape."""
    missing = [item.samples for item in items if not item.samples.is_file()]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(items)} training skulls have no sampled implants, such as "
            f"{missing[0]}; write them by `{SAMPLES_COMMAND}`, or set data.errors.sampled=0"
        )
    for item in items:
        load_samples(item)


def load_samples(item: SkullItem) -> Points:
    """Return the implants (n, K, 3) that a trained model sampled for a skull, memory-mapped."""
    remedy = f"write them by `{SAMPLES_COMMAND}`"
    try:
        samples: Points = open_arrays(item.samples, mapped=True)
    except Exception as error:  # a damaged header stops numpy with almost any: SyntaxError, ...
        raise DataError(
            f"{item.samples}: not a readable array ({type(error).__name__}: {error}); {remedy}"
        ) from error
    is_float = np.issubdtype(samples.dtype, np.floating)
    if samples.ndim != 3 or samples.shape[2] != 3 or not samples.size or not is_float:
        raise DataError(
            f"{item.samples}: {samples.dtype} {samples.shape}; expected floats of shape (implants, "
            f"points, 3); {remedy}"
        )
    return samples


def draw_points(cloud: Points, count: int, rng: np.random.Generator, path: Path | str) -> Points:
    """Sample `count` points with replacement; reject non-finite ones."""
    # In file order, so that a mapped file is read sequentially.
    chosen = rng.integers(0, len(cloud), count)
    order = np.argsort(chosen, kind="stable")
    drawn = np.empty((count, 3), dtype=cloud.dtype)
    drawn[order] = cloud[chosen[order]]
    if not np.isfinite(drawn).all():
        bad = int(chosen[np.flatnonzero(~np.isfinite(drawn).all(axis=1))[0]])
        raise DataError(
            f"{path}: point {bad} is not finite ({cloud[bad].tolist()}); make the cloud again by "
            "`overt data prepare ROOT --force`"
        )
    return drawn
