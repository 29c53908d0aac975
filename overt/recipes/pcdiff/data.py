"""Clouds for training and evaluation; all randomness of a sample comes from its own generator.

Letters: B clouds, S known points, K implant points.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from overt.data.rng import sample_rng
from overt.data.skulls.lists import (
    Cloud,
    Points,
    SkullItem,
    SkullList,
    draw_points,
    known_cloud,
    load_cloud,
    rotation_matrix,
    training_cloud,
)
from overt.data.skulls.nrrd import names_axes, read_affine
from overt.data.skulls.synthetic import write_skulls
from overt.data.skulls.volumes import SKULLFIX_SPACING, Spacing, spacing_of
from overt.distributed import main_first
from overt.errors import ConfigError, DataError
from overt.progress import expendable
from overt.recipes.pcdiff.close_up import FEWEST_POINTS, random_cube
from overt.recipes.pcdiff.config import DataSettings, DiffusionSettings, EvaluationSettings
from overt.recipes.pcdiff.geometry import Geometry
from overt.recipes.pcdiff.voxel_config import VoxelEvaluationSettings

FIXED_NOISE_SEED = 570
# The example skull in normalized coordinates: half its size along each axis, its wall thickness as
# a fraction of that, and the height above which it is the implant.
SKULL_EXTENT, WALL, CAP_HEIGHT = (2.4, 3.0, 2.6), 0.06, 0.75
SKULLBREAK_SPACING = 0.4  # mm, without a volume to tell
HEADERS_READ = 32  # of training volumes, for the size of their voxels

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CloudSample:
    known: Tensor  # (S, 3)
    implant: Tensor  # (K, 3) without noise
    noise: Tensor  # (K, 3)
    time: int
    name: str


@dataclass(frozen=True)
class CloudBatch:
    known: Tensor  # (B, S, 3)
    implant: Tensor  # (B, K, 3)
    noise: Tensor  # (B, K, 3)
    times: Tensor  # (B,) int64
    names: tuple[str, ...]
    geometry: Geometry | None = None  # of all points, those of the implant with their noise


def collate(samples: list[CloudSample]) -> CloudBatch:
    return CloudBatch(
        torch.stack([sample.known for sample in samples]),
        torch.stack([sample.implant for sample in samples]),
        torch.stack([sample.noise for sample in samples]),
        torch.tensor([sample.time for sample in samples]),
        tuple(sample.name for sample in samples),
    )


def make_missing_data(settings: DataSettings) -> None:
    """Write the synthetic skulls described by `data.synthetic`, unless they exist.

    Every rank has to call this.
    """
    if settings.synthetic is not None:
        options = dataclasses.asdict(settings.synthetic)
        options |= {"workers": options["workers"] or 0, "kind": options["kind"] or "shells"}
        main_first(expendable()(lambda: write_skulls(given_root(settings), **options)))


def given_root(settings: DataSettings) -> Path:
    if settings.root is None:
        raise ConfigError(
            "data.root is not given: the folder with complete_skull, defective_skull and implant. "
            "SkullBreak and SkullFix are published with doi:10.1016/j.dib.2021.106902; `overt "
            "data prepare` prepares them, `overt data skulls` writes synthetic ones"
        )
    return Path(settings.root)


def open_list(settings: DataSettings, file: str) -> SkullList:
    """A list of skulls whose clouds all exist and are large enough."""
    skulls = SkullList(given_root(settings) / file, settings.dataset)
    skulls.check(settings.num_known_points, settings.num_implant_points)
    return skulls


def training_spacing(settings: DataSettings, items: Sequence[SkullItem]) -> Spacing | None:
    """Return mm of the voxels that clouds were made in, along the axes of the data set.

    Where the settings do not tell it is the median of some volumes; None without any.
    """
    if settings.voxel_mm is not None:
        return (settings.voxel_mm,) * 3
    volumes = [item.volume("skull") for item in items[:: -(-len(items) // HEADERS_READ)]]
    spacings = [spacing for volume in volumes if (spacing := _named_spacing(volume)) is not None]
    if not spacings:
        return None
    x, y, z = np.median(spacings, axis=0).tolist()
    return x, y, z


def _named_spacing(volume: Path) -> Spacing | None:
    """Return what the header of a volume says; training itself reads only clouds."""
    with suppress(DataError, OSError):
        spacing = spacing_of(read_affine(volume)) if names_axes(volume) else (0.0, 0.0, 0.0)
        return spacing if all(0 < side < math.inf for side in spacing) else None
    return None


class TrainingClouds:
    """The items of the training list, with points, time step and noise sampled each time."""

    def __init__(self, settings: DataSettings, diffusion: DiffusionSettings) -> None:
        self.settings = settings
        self.diffusion = diffusion
        self.items = open_list(settings, settings.train_list).items

    def __len__(self) -> int:
        return len(self.items)

    def sample(self, index: int, rng: np.random.Generator) -> CloudSample:
        settings, item = self.settings, self.items[index]
        skull = load_cloud(item.skull, settings.num_known_points)
        close_ups = settings.close_ups
        if close_ups is not None and rng.random() < close_ups.fraction:
            bone = random_cube(load_cloud(item.implant), close_ups, rng).inside(skull)
            skull = bone if len(bone) >= FEWEST_POINTS else skull
        known = draw_points(skull, settings.num_known_points, rng, item.skull)
        implant = draw(item.implant, settings.num_implant_points, rng)
        return noised(known, implant, settings, self.diffusion, index, rng, item.name)


def noised(
    known: Points,
    implant: Points,
    settings: DataSettings,
    diffusion: DiffusionSettings,
    index: int,
    rng: np.random.Generator,
    name: str,
) -> CloudSample:
    """Return a normalized cloud, optionally rotated, with its time step and noise."""
    rotation = None
    if settings.augment:
        limit = np.deg2rad(settings.rotation_degrees)
        rotation = rotation_matrix(rng.uniform(-limit, limit, 3))
    cloud = training_cloud(known, implant, rotation, settings.known_box)
    if diffusion.time_power == 1:
        time = int(rng.integers(diffusion.steps))
    else:
        time = int(diffusion.steps * rng.random() ** diffusion.time_power)
    if time == 0 and settings.fixed_noise_at_t0:
        rng = sample_rng(FIXED_NOISE_SEED, 0, index)
    noise = draw_noise(rng, len(implant), diffusion.shared_noise)
    points = torch.from_numpy(cloud.points)
    return CloudSample(points[: len(known)], points[len(known) :], noise, time, name)


def draw_noise(rng: np.random.Generator, count: int, shared: float) -> Tensor:
    """Return noise (count, 3): standard normal, plus `shared` times a vector common to all points.

    Independent noise averages out over many points: their mean would reveal the implant's position
    even at the noisiest step, and sampling, which starts from pure noise, would start with a wrong
    position.
    """
    noise = rng.standard_normal((count, 3), dtype=np.float32)
    if shared > 0:
        noise += np.float32(shared) * rng.standard_normal((1, 3), dtype=np.float32)
    return torch.from_numpy(noise)


def example_sample(settings: DataSettings, diffusion: DiffusionSettings, index: int) -> CloudSample:
    """Generate a skull with two walls, and an implant that is a cap of both."""
    rng = sample_rng(0, 0, index)

    def shell(count: int, low: float, high: float) -> Points:
        """Return points on both walls between two heights; heights are uniform on a sphere."""
        height, turn = rng.uniform(low, high, count), rng.uniform(0, 2 * np.pi, count)
        radius = np.sqrt(1 - height**2)
        directions = np.stack([radius * np.cos(turn), radius * np.sin(turn), height], axis=1)
        walls = 1 - WALL * rng.integers(2, size=(count, 1))
        points: Points = (directions * SKULL_EXTENT * walls).astype(np.float32)
        return points

    known = shell(settings.num_known_points, -1.0, CAP_HEIGHT)
    implant = shell(settings.num_implant_points, CAP_HEIGHT, 1.0)
    return noised(known, implant, settings, diffusion, index, rng, "example")


def draw(path: Path, count: int, rng: np.random.Generator) -> Points:
    return draw_points(load_cloud(path, count), count, rng, path)


@dataclass(frozen=True)
class Skull:
    """A defective skull to be completed, normalized by its own points."""

    cloud: Cloud  # (S, 3) known points
    points: Points  # (N, 3) all of its points, in their original coordinates
    number: int  # selects the noise

    def to_cloud(self, points: Tensor) -> Points:
        """Return normalized points (..., 3) in the original coordinates."""
        coordinates: Points = points.numpy() * self.cloud.scale + self.cloud.shift
        return coordinates


@dataclass(frozen=True)
class HeldOutCase(Skull):
    """A skull of the test list, and the ground truth of its implant."""

    item: SkullItem
    implant: Tensor  # (K, 3) true points in the coordinates of the cloud
    voxel_mm: float

    @property
    def unit_mm(self) -> float:
        """Return the mm per unit of normalized coordinates."""
        return float(self.cloud.scale.item()) * self.voxel_mm


class HeldOutCases:
    """The test list, or an evenly spaced subset; a case always has the same points."""

    def __init__(
        self, data: DataSettings, evaluation: EvaluationSettings | VoxelEvaluationSettings
    ) -> None:
        self.data = data
        self.seed = evaluation.seed
        items = open_list(data, data.test_list).items
        count = min(evaluation.cases or len(items), len(items))
        self.numbers = [round(number) for number in np.linspace(0, len(items) - 1, count)]
        self.items = [items[number] for number in self.numbers]

    def __len__(self) -> int:
        return len(self.items)

    def case(self, index: int) -> HeldOutCase:
        item, rng = self.items[index], sample_rng(self.seed, 0, self.numbers[index])
        count = self.data.num_known_points
        points = load_cloud(item.skull, count)
        cloud = known_cloud(draw_points(points, count, rng, item.skull))
        implant = draw(item.implant, self.data.num_implant_points, rng)
        return HeldOutCase(
            cloud,
            points,
            self.numbers[index],
            item,
            torch.from_numpy(((implant - cloud.shift) / cloud.scale).astype(np.float32)),
            voxel_size(item, self.data.dataset),
        )

    def noise(self, index: int, shared: float = 0.0) -> Tensor:
        """Return fixed noise (K, 3) for a case."""
        rng = sample_rng(self.seed, 1, self.numbers[index])
        return draw_noise(rng, self.data.num_implant_points, shared)


def voxel_size(item: SkullItem, dataset: str) -> float:
    """Return the mm per unit of a cloud: SkullFix is resampled, SkullBreak is not."""
    if dataset == "skullfix":
        return SKULLFIX_SPACING
    volume = item.volume("skull")
    if volume.is_file():
        return spacing_of(read_affine(volume))[0]
    _warn_of_assumed_spacing(volume.parents[2])
    return SKULLBREAK_SPACING


@cache
def _warn_of_assumed_spacing(root: Path) -> None:
    """Warn once for each data set."""
    logger.warning(
        "%s: no volume beside the clouds: voxels of %g mm assumed, as SkullBreak's, in all scores "
        "in mm",
        root,
        SKULLBREAK_SPACING,
    )
