"""Bone, its mirror image, and points of an implant, at the nodes of a cube around the implant.

Letters: B cases, K implant points, R nodes along a side of the cube.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.data.rng import sample_rng
from overt.data.skulls.lists import (
    Points,
    SkullItem,
    check_samples,
    load_cloud,
    load_samples,
    rotation_matrix,
)
from overt.data.skulls.prepare import load_case, save_cloud
from overt.errors import DataError
from overt.files.bounds import open_arrays
from overt.geometry.symmetry import Matrix, match_points, mirror_of_points
from overt.recipes.pcdiff.close_up import Cube, box_of
from overt.recipes.pcdiff.data import draw, open_list
from overt.recipes.pcdiff.refine_config import (
    ErrorSettings,
    RefineDataSettings,
    RefineModelSettings,
)
from overt.recipes.pcdiff.voxel_data import nodes_of

_WAVES = 3  # of a bend
_WAVE_MM = (40.0, 120.0)  # shortest and longest
_AROUND_MM = 180.0  # side of the cube whose bone the mirror image is matched to
_MATCHED_POINTS = 8192
_REACH_MM = 7.0  # to a match
_FLIP = np.diag([-1.0, 1.0, 1.0])  # left and right
NOWHERE = -1.0  # the coordinate of lost points: outside the unit cube


@dataclass(frozen=True)
class RefineSample:
    skull: Tensor  # (R, R, R) bool: the defective one
    mirrored: Tensor  # (R, R, R) bool: its mirror image
    points: Tensor  # (K, 3) of the implant in the unit cube; outside of it: none
    implant: Tensor  # (R, R, R) bool: the true one
    name: str


@dataclass(frozen=True)
class RefineBatch:
    skull: Tensor  # (B, R, R, R) bool
    mirrored: Tensor  # (B, R, R, R) bool
    points: Tensor  # (B, K, 3)
    implant: Tensor  # (B, R, R, R) bool
    names: tuple[str, ...]


def collate_refine(samples: list[RefineSample]) -> RefineBatch:
    return RefineBatch(
        torch.stack([sample.skull for sample in samples]),
        torch.stack([sample.mirrored for sample in samples]),
        torch.stack([sample.points for sample in samples]),
        torch.stack([sample.implant for sample in samples]),
        tuple(sample.name for sample in samples),
    )


class Window(NamedTuple):
    """The nodes around an implant: a cube in the coordinates of clouds, and how it is turned."""

    cube: Cube
    turn: NDArray[np.float64]  # (3, 3) orthogonal, from the axes of the cube to those of the cloud

    def to_unit(self, points: Points) -> Points:
        moved: Points = (points - self.cube.center) @ self.turn / self.cube.side + 0.5
        return moved

    def from_unit(self, points: Points) -> Points:
        moved: Points = (points - 0.5) * self.cube.side @ self.turn.T + self.cube.center
        return moved


def window_of(
    implants: Points,  # (n, K, 3)
    settings: RefineModelSettings,
    unit_mm: float,
    turn: NDArray[np.float64] | None = None,
    scale: float = 1.0,
) -> Window:
    """Return the window in whose middle the samples of an implant are."""
    low, high = box_of(implants)
    side = settings.side * settings.spacing_mm / unit_mm * scale
    return Window(Cube((low + high) / 2, side), np.eye(3) if turn is None else turn)


def unit_in_mm(to_indices: Callable[[Points], Points], spacing: Sequence[float]) -> float:
    """Return the mm per unit of the coordinates that `to_indices` maps to voxels."""
    step = to_indices(np.eye(3)[:1]) - to_indices(np.zeros((1, 3)))
    return float(np.linalg.norm(step * np.asarray(spacing)))


def mirror_near(skull: Points, implant: Points, unit_mm: float) -> Matrix:
    """Return the reflection (4, 4) of a skull's points (N, 3) that fits best around an implant's.

    Both are in the coordinates of clouds.
    """
    chosen = np.random.default_rng(0).permutation(len(skull))[:_MATCHED_POINTS]
    points = skull[np.sort(chosen)].astype(np.float64)
    low, high = box_of(implant[None])
    near = Cube((low + high) / 2, _AROUND_MM / unit_mm).inside(points)
    return match_points(points, near, mirror_of_points(points)[0], _REACH_MM / unit_mm)


def kept_mirror(item: SkullItem, unit_mm: float) -> Matrix:
    """Return the reflection of a listed skull around its true implant, kept in a file beside it."""
    kept = _read_mirror(item)
    if kept is not None:
        return kept
    mirror = mirror_near(load_cloud(item.skull), load_cloud(item.implant), unit_mm)
    with suppress(OSError):  # where nothing can be written, every process finds it itself
        save_cloud(item.mirror, mirror)
    return mirror


def _read_mirror(item: SkullItem) -> Matrix | None:
    """Return the reflection from its file, if it is there, whole, and not older than the cloud."""
    file = item.mirror
    if not file.is_file() or file.stat().st_mtime_ns < item.skull.stat().st_mtime_ns:
        return None
    try:
        kept = np.asarray(open_arrays(file), dtype=np.float64)
    except Exception:  # a damaged header stops numpy with almost any: SyntaxError, ...
        return None
    return kept if kept.shape == (4, 4) and np.isfinite(kept).all() else None


def bone_in(
    window: Window,
    values: NDArray[Any],  # of a volume; 0: empty
    to_indices: Callable[[Points], Points],  # of the volume, from the coordinates of clouds
    mirror: Matrix | None,
    side: int,
) -> tuple[Any, Any]:
    """Return the values at the nodes (R, R, R) of a window, and their mirror image.

    Without a mirror the image is empty.
    """
    direct = nodes_of(values, lambda unit: to_indices(window.from_unit(unit)), side)
    if mirror is None:
        return direct, np.zeros_like(direct)
    back = np.linalg.inv(mirror)

    def image_of(unit: Points) -> Points:
        return to_indices(window.from_unit(unit) @ back[:3, :3].T + back[:3, 3])

    return direct, nodes_of(values, image_of, side)


def misplaced(
    points: Points, errors: ErrorSettings, unit_mm: float, rng: np.random.Generator
) -> Points:
    """Return points (K, 3) moved as a whole, bent, and each on its own, like sampled ones."""
    shift, bend, noise = rng.random(3) * (errors.shift_mm, errors.bend_mm, errors.noise_mm)
    moved = points * unit_mm
    change = shift * rng.standard_normal((1, 3)) + noise * rng.standard_normal(points.shape)
    for _ in range(_WAVES):
        direction, way = rng.standard_normal((2, 3))
        frequency = 2 * np.pi / rng.uniform(*_WAVE_MM) * direction / np.linalg.norm(direction)
        phase = moved @ frequency + rng.uniform(0, 2 * np.pi)
        change += bend / np.sqrt(_WAVES) * np.sin(phase)[:, None] * way / np.linalg.norm(way)
    return np.asarray((moved + change) / unit_mm)


def sampled_points(item: SkullItem, count: int, rng: np.random.Generator) -> Points:
    """Return points (count, 3) of one of the implants that a trained model sampled."""
    samples = load_samples(item)
    points = np.asarray(samples[rng.integers(len(samples))], dtype=np.float64)
    if not np.isfinite(points).all():
        raise DataError(
            f"{item.samples}: points that are not finite; write it again by `overt data implants`, "
            "with a model that samples finite ones"
        )
    return as_many(points, count, rng)


def as_many(points: Points, count: int, rng: np.random.Generator) -> Points:
    """Return `count` of the points (K, 3): the number that the network has learned from."""
    if len(points) == count:
        return points
    return np.asarray(points[rng.choice(len(points), count, replace=len(points) < count)])


class TrainingWindows:
    """The items of the training list, each time with other errors of its points."""

    def __init__(self, data: RefineDataSettings, model: RefineModelSettings) -> None:
        self.data, self.model = data, model
        self.items = open_list(data, data.train_list).items
        if data.errors.sampled > 0:
            check_samples(self.items)
        self.mirrors: dict[int, Matrix] = {}

    def __len__(self) -> int:
        return len(self.items)

    def sample(self, index: int, rng: np.random.Generator) -> RefineSample:
        data, model, item = self.data, self.model, self.items[index]
        case = load_case(item, data.dataset)
        unit_mm = unit_in_mm(case.to_indices, case.spacing)
        if rng.random() < data.errors.sampled:
            points = sampled_points(item, data.num_implant_points, rng)
        else:
            true = draw(item.implant, data.num_implant_points, rng)
            points = misplaced(true, data.errors, unit_mm, rng)
        turn = None
        if data.augment:
            limit = np.deg2rad(data.rotation_degrees)
            turn = rotation_matrix(rng.uniform(-limit, limit, 3))
            turn = turn @ _FLIP if rng.random() < 0.5 else turn
        scale = rng.uniform(1 - data.errors.scale, 1 + data.errors.scale)
        window = window_of(points[None], model, unit_mm, turn, scale)
        mirror = self.mirror(index, unit_mm)
        labels = case.skull + 2 * case.implant.astype(np.uint8)  # one look-up for both
        labels, image = bone_in(window, labels, case.to_indices, mirror, model.side)
        shown = window.to_unit(points).astype(np.float32)
        if rng.random() < data.errors.lost:
            shown[:] = NOWHERE
        # Bone that the implant overlaps is bone, as in the volumes that are made of scans.
        bone = (labels % 2 == 1, image % 2 == 1)
        skull, mirrored, implant = map(torch.from_numpy, (*bone, labels == 2))
        return RefineSample(skull, mirrored, torch.from_numpy(shown), implant, item.name)

    def mirror(self, index: int, unit_mm: float) -> Matrix | None:
        """Return the reflection of a skull, matched around its true implant."""
        if not self.model.mirrored:
            return None
        if index not in self.mirrors:
            self.mirrors[index] = kept_mirror(self.items[index], unit_mm)
        return self.mirrors[index]


def example_window(settings: RefineModelSettings, count: int, index: int) -> RefineSample:
    """Generate a shell with a hole, and the cap that closes it."""
    rng = sample_rng(0, 0, index)
    nodes = np.arange(settings.side) / settings.side - 0.5
    x, y, z = np.meshgrid(nodes, nodes, nodes, indexing="ij")
    radius, wall = rng.uniform(0.6, 0.9), 0.08
    distance = np.sqrt(x**2 + y**2 + (z + radius) ** 2)  # the top of a large ball
    shell = (distance < radius) & (distance > radius - wall)
    cap = shell & (np.sqrt(x**2 + y**2) < 0.25)
    at = np.argwhere(cap)
    points = at[rng.integers(0, len(at), count)] / settings.side
    bone = torch.from_numpy(shell & ~cap)
    return RefineSample(
        bone,
        bone.flip(0),
        torch.from_numpy(points.astype(np.float32)),
        torch.from_numpy(cap),
        "example",
    )
