"""Training samples of both stages, and the people that are evaluated.

All randomness comes from the sample's generator. Letters: B samples, S pixels of a side.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from overt.data.images.decode import as_tensor
from overt.data.people.crops import (
    Augmentation,
    Crop,
    centred_side,
    cut,
    draw_crop,
    mirror_keypoints,
)
from overt.data.people.mixture import DrawnMixture
from overt.data.people.scenes import PeopleOptions
from overt.data.people.synthetic import check_people, paths_of_set, write_people
from overt.distributed import main_first
from overt.geometry.body import SHAPE_NUMBERS
from overt.geometry.body_files import CAPSULE
from overt.geometry.crop import Picture, transform_points
from overt.geometry.pose import mirror_pose, rotate_in_plane
from overt.geometry.rotation import axis_angle_to_matrix, matrix_to_axis_angle
from overt.progress import expendable
from overt.recipes.blade.config import (
    PROTOCOLS,
    RENDERED_SETS,
    BodySettings,
    DataSettings,
    EvaluationSettings,
    SourceSettings,
    SyntheticSettings,
)
from overt.recipes.blade.people import LabeledPeople, People
from overt.recipes.blade.silhouette import Silhouettes

TEST_SEED_OFFSET = 1


class DepthSample(NamedTuple):
    image: Tensor  # (3, S, S) uint8
    depth: float  # meters, of the pelvis


@dataclass(frozen=True)
class DepthBatch:
    images: Tensor  # (B, 3, S, S) uint8
    depth: Tensor  # (B,) meters
    known: Tensor  # (B,) bool


def collate_depth(samples: list[DepthSample]) -> DepthBatch:
    depth = torch.tensor([sample.depth for sample in samples])
    images = torch.stack([sample.image for sample in samples])
    return DepthBatch(images, depth, torch.isfinite(depth))


class PoseSample(NamedTuple):
    depth_image: Tensor  # (3, S, S) uint8
    pose_image: Tensor  # (3, S', S') uint8
    pose: Tensor  # (52, 3) root, body and hands, as they are in the second crop
    shape: Tensor  # (10,)
    depth: float
    keypoints: Tensor  # (12, 3) limb joints, 0 to 1 across the second crop, and whether known
    centre: Tensor  # (2,) principal point, 0 to 1 across the second crop


@dataclass(frozen=True)
class PoseBatch:
    depth_images: Tensor  # (B, 3, S, S) uint8
    pose_images: Tensor  # (B, 3, S', S') uint8
    pose: Tensor  # (B, 52, 3)
    shape: Tensor  # (B, 10)
    depth: Tensor  # (B,)
    keypoints: Tensor  # (B, 12, 3)
    centre: Tensor  # (B, 2)
    silhouettes: Silhouettes | None = None  # drawn on the device, with model.silhouette_head


def collate_pose(samples: list[PoseSample]) -> PoseBatch:
    return PoseBatch(
        torch.stack([sample.depth_image for sample in samples]),
        torch.stack([sample.pose_image for sample in samples]),
        torch.stack([sample.pose for sample in samples]),
        torch.stack([sample.shape for sample in samples]),
        torch.tensor([sample.depth for sample in samples]),
        torch.stack([sample.keypoints for sample in samples]),
        torch.stack([sample.centre for sample in samples]),
    )


class DepthSource:
    """Crops of the people of one data set, with their distances."""

    def __init__(self, people: LabeledPeople, settings: DataSettings) -> None:
        self.people, self.size = people, settings.depth_size
        self.augmentation = Augmentation(**dataclasses.asdict(settings.depth_augmentation))

    def __len__(self) -> int:
        return len(self.people)

    def sample(self, index: int, rng: np.random.Generator) -> DepthSample:
        picture = self.people.picture(index)
        image_size = picture.shape[:2]
        centre, side = self.people.square(index, image_size)
        crop = draw_crop(centre, side, image_size, self.augmentation, rng)
        pixels, _ = cut(picture, crop, self.size)
        return DepthSample(as_tensor(pixels), float(self.people.pelvis(index)[2]))


class PoseSource:
    """Two crops of each picture, with pose and shape as they appear in the second."""

    def __init__(self, people: LabeledPeople, settings: DataSettings) -> None:
        self.people, self.settings = people, settings
        self.augmentation = Augmentation(**dataclasses.asdict(settings.pose_augmentation))

    def __len__(self) -> int:
        return len(self.people)

    def sample(self, index: int, rng: np.random.Generator) -> PoseSample:
        settings, people = self.settings, self.people
        picture = people.picture(index)
        height, width = image_size = picture.shape[:2]
        keypoints = people.limb_keypoints(index)
        least, added = settings.pose_side
        side = centred_side(keypoints, image_size) * (least + added * rng.random())
        crop = draw_crop((width / 2, height / 2), side, image_size, self.augmentation, rng)
        pixels, affine = cut(picture, crop, settings.pose_size)
        label = people.label(index)
        parts = [torch.from_numpy(np.array(part, np.float32)) for part in label[:4]]
        root, body, left, right = parts
        if crop.mirrored:
            root, body, left, right = mirror_pose(root, body, left, right)
        if crop.degrees:
            turned = rotate_in_plane(axis_angle_to_matrix(root)[None], torch.tensor([crop.degrees]))
            root = matrix_to_axis_angle(turned)[0]
        limbs = np.zeros((12, 3), np.float32)
        if keypoints is not None:
            keypoints_seen = mirror_keypoints(keypoints, width) if crop.mirrored else keypoints
            limbs[:, :2] = transform_points(affine, keypoints_seen[:, :2]) / settings.pose_size
            inside = ((limbs[:, :2] > 0) & (limbs[:, :2] < 1)).all(1)
            limbs[:, 2] = (keypoints_seen[:, 2] > 0) & inside
        x, y = people.principal_point(index, image_size)
        principal = np.array([[width - 1 - x if crop.mirrored else x, y]])
        centre = transform_points(affine, principal)[0] / settings.pose_size
        return PoseSample(
            depth_crop(people, index, picture, settings.depth_size),
            as_tensor(pixels),
            torch.cat([root[None], body, left, right]),
            torch.from_numpy(np.array(label.shape[:SHAPE_NUMBERS], np.float32)),
            float(people.pelvis(index)[2]),
            torch.from_numpy(limbs),
            torch.from_numpy(centre.astype(np.float32)),
        )


def depth_crop(people: LabeledPeople, row: int, picture: Picture, size: int) -> Tensor:
    """Return DepthNet's crop (3, S, S) by the annotation, without augmentation."""
    centre, side = people.square(row, picture.shape[:2])
    return as_tensor(cut(picture, Crop(centre, side), size)[0])


def whole_crop(image_size: tuple[int, int]) -> Crop:
    """Return the square around the whole picture, as PoseNet sees it at test time."""
    height, width = image_size
    return Crop((width / 2, height / 2), float(max(height, width)))


# --- opening -------------------------------------------------------------------------------------


def people_options(synthetic: SyntheticSettings, seed: int) -> PeopleOptions:
    """Return how the people of these settings are rendered."""
    return PeopleOptions(
        size=synthetic.size,
        seed=seed,
        framing=synthetic.framing,
        orthographic=synthetic.orthographic,
        fixed_colors=synthetic.fixed_colors,
        depth_maps=synthetic.depth_maps,
        body=synthetic.body or CAPSULE,
        backgrounds=synthetic.backgrounds,
        device=synthetic.device or "cpu",
    )


def make_missing_data(settings: DataSettings, training: bool = True) -> None:
    """Render the people described by `data.synthetic`, unless they exist; refuse others.

    Every rank has to call this. Without `training`, only the test set is rendered.
    """
    synthetic = settings.synthetic
    if synthetic is None:
        return
    root = Path(settings.root)

    @expendable()
    def make() -> None:
        sets = [("people_test", synthetic.test, synthetic.seed + TEST_SEED_OFFSET)]
        if training and not synthetic.live:
            sets.insert(0, ("people_train", synthetic.train, synthetic.seed))
        for name, count, seed in sets:
            options = people_options(synthetic, seed)
            if paths_of_set(root, name)[0].exists():
                check_people(root, name, count, options)
            else:
                write_people(root, name, count, options, workers=synthetic.workers or 0)

    main_first(make)


def make_evaluation_data(settings: DataSettings, evaluation: EvaluationSettings) -> None:
    """Render the people to score if they are synthetic; every rank has to call it."""
    if evaluation.dataset_root is None and evaluation.dataset in RENDERED_SETS:
        make_missing_data(settings, training=False)


def open_training(
    settings: DataSettings, body: BodySettings, source: type[DepthSource] | type[PoseSource]
) -> DrawnMixture:
    """Return all data sets of `data.sources`, mixed by their fractions."""
    make_missing_data(settings)
    root, needs_pose = Path(settings.root), source is PoseSource
    people = [People(entry, settings, body, root, needs_pose) for entry in settings.sources]
    for members in people:
        if settings.drop_bad_rows:  # every rank has to know the rows
            members.check_pictures()
        else:
            main_first(members.check_pictures)
    sets = [source(members, settings) for members in people]
    return DrawnMixture(sets, [entry.weight for entry in settings.sources])


def open_evaluation(
    settings: DataSettings, evaluation: EvaluationSettings, body: BodySettings, needs_pose: bool
) -> People:
    """Return the people of `evaluation.dataset`; synthetic ones must already exist."""
    root = Path(evaluation.dataset_root or settings.root)
    protocol = PROTOCOLS[evaluation.dataset]
    source = SourceSettings(
        evaluation.dataset, protocol.annotations, protocol.images, 1.0, protocol.layout
    )
    return People(source, settings, body, root, needs_pose)


def scored_count(people: People, evaluation: EvaluationSettings) -> int:
    """Return how many people are scored: the first ones."""
    return min(len(people), evaluation.max_samples or len(people))


def check_scored_pictures(people: People, evaluation: EvaluationSettings) -> None:
    """Reject missing, unreadable and wrong pictures before the first step, not at an evaluation."""
    for row in range(scored_count(people, evaluation)):
        people.check_picture(row)
