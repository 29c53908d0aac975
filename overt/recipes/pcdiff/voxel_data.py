"""Points and complete skulls for the second stage, in a cube around the known points.

Letters: B clouds, P points, R nodes along a side of the field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.data.rng import sample_rng
from overt.data.skulls.lists import HALF_EXTENT, Cloud, Points, rotation_matrix, training_cloud
from overt.data.skulls.prepare import load_case
from overt.recipes.pcdiff.config import DataSettings, DiffusionSettings
from overt.recipes.pcdiff.data import draw, example_sample, open_list

# Side of the cube, relative to the box of the known points: an implant may extend beyond that box.
CUBE = 1.25
_SIDE = 2 * HALF_EXTENT * CUBE  # in normalized coordinates


@dataclass(frozen=True)
class VoxelSample:
    points: Tensor  # (P, 3) in the unit cube
    bone: Tensor  # (R, R, R) bool: the complete skull
    name: str


@dataclass(frozen=True)
class VoxelBatch:
    points: Tensor  # (B, P, 3)
    bone: Tensor  # (B, R, R, R) bool
    names: tuple[str, ...]


def collate_voxels(samples: list[VoxelSample]) -> VoxelBatch:
    return VoxelBatch(
        torch.stack([sample.points for sample in samples]),
        torch.stack([sample.bone for sample in samples]),
        tuple(sample.name for sample in samples),
    )


def unit_of(points: Tensor) -> Tensor:
    """Return normalized points in the unit cube."""
    return points / _SIDE + 0.5


def unit_map(cloud: Cloud) -> Callable[[Points], Points]:
    """Return the map from the coordinates of a cloud on disk to the unit cube."""
    return lambda points: np.asarray((points - cloud.shift) / cloud.scale / _SIDE + 0.5)


def bone_at_nodes(
    bone: NDArray[np.bool_],
    to_indices: Callable[[Points], Points],  # from the coordinates of clouds
    cloud: Cloud,
    side: int,
    turned_back: Callable[[Points], Points] | None = None,
) -> NDArray[np.bool_]:
    """Return which nodes (R, R, R) of the cube are bone; outside the volume none are.

    Both maps have to be affine.
    """

    def unit_to_indices(nodes: Points) -> Points:
        points: Points = (nodes - 0.5) * _SIDE * cloud.scale + cloud.shift
        return to_indices(points if turned_back is None else turned_back(points))

    return np.asarray(nodes_of(bone, unit_to_indices, side))


def nodes_of(values: NDArray[Any], to_indices: Callable[[Points], Points], side: int) -> Any:
    """Return the values of a volume at the nodes (R, R, R) of the unit cube; 0 outside of it.

    `to_indices` maps the unit cube to the indices of the volume. It has to be affine: its matrix is
    probed at four points.
    """
    images = to_indices(np.concatenate([np.zeros((1, 3)), np.eye(3)]))
    origin, matrix = images[0], images[1:] - images[0]  # matrix: a row for each axis of the nodes
    nodes = np.arange(side) / side
    # Indices outside are clipped to a border of zeros.
    padded = np.pad(values, 1)
    flat = padded.ravel(order="K")  # in memory order: NRRD is read in Fortran order
    strides = np.array(padded.strides) // padded.itemsize
    # An axis of the volume parallel to one of the nodes keeps a size of 1 along the others.
    planes = [
        origin[axis]
        + (matrix[1, axis] * nodes if matrix[1, axis] else np.zeros(1))[:, None]
        + (matrix[2, axis] * nodes if matrix[2, axis] else np.zeros(1))
        for axis in range(3)
    ]
    result = np.zeros((side,) * 3, dtype=values.dtype)
    for index, x in enumerate(nodes):  # slab by slab: a field may have 512 nodes along a side
        offset: NDArray[np.float64] = np.full((1, 1), float(strides.sum()))
        for axis, plane in enumerate(planes):
            indices = np.clip(plane + matrix[0, axis] * x, -1, values.shape[axis])
            offset = offset + np.rint(indices, out=indices) * strides[axis]
        result[index] = flat[offset.astype(np.intp)]
    return result


class TrainingVoxels:
    """The items of the training list, with newly sampled, optionally rotated points each time."""

    def __init__(self, settings: DataSettings, side: int) -> None:
        self.settings, self.side = settings, side
        self.items = open_list(settings, settings.train_list).items

    def __len__(self) -> int:
        return len(self.items)

    def sample(self, index: int, rng: np.random.Generator) -> VoxelSample:
        settings, item = self.settings, self.items[index]
        known = draw(item.skull, settings.num_known_points, rng)
        implant = draw(item.implant, settings.num_implant_points, rng)
        rotation, turned_back = None, None
        if settings.augment:
            limit = np.deg2rad(settings.rotation_degrees)
            rotation = matrix = rotation_matrix(rng.uniform(-limit, limit, 3))
            mean = np.concatenate([known, implant]).mean(axis=0)

            def turned_back(points: Points) -> Points:
                return np.asarray((points - mean) @ matrix + mean)

        cloud = training_cloud(known, implant, rotation, known_box=True)
        case = load_case(item, settings.dataset)
        bone = bone_at_nodes(
            case.skull | case.implant, case.to_indices, cloud, self.side, turned_back
        )
        points = unit_of(torch.from_numpy(cloud.points))
        return VoxelSample(points, torch.from_numpy(bone), item.name)


def example_voxels(settings: DataSettings, side: int, index: int) -> VoxelSample:
    """Generate a skull of two walls that encloses a third of the cube."""
    unused = DiffusionSettings("linear", 1e-4, 0.02, 10, "fixedsmall")  # of noise
    cloud = example_sample(settings, unused, index)
    nodes = (torch.arange(side) / side - 0.5) * 2
    distance = (nodes[:, None, None] ** 2 + nodes[:, None] ** 2 + nodes**2).sqrt()
    radius = float(sample_rng(0, 1, index).uniform(0.6, 0.8))
    points = unit_of(torch.cat([cloud.known, cloud.implant]))
    return VoxelSample(points, (distance < radius) & (distance > radius - 0.2), cloud.name)
