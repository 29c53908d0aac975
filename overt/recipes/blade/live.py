"""Training samples of both stages without files: people rendered on the training device.

The loader samples numbers, `on_device` of the recipes makes pictures, crops and labels of them, the
same as `DepthSource` and `PoseSource` make of written people. Letters: B samples.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from overt.data.people.backdrops import Photographs
from overt.data.people.crops import (
    LIMB_MIRROR,
    SMALLEST_CENTRED,
    Augmentation,
    Change,
    Changes,
    cut_batch,
    draw_change,
)
from overt.data.people.live import Drawn, DrawnPerson, Studio, draw_live
from overt.data.people.photograph import PhotographOptions
from overt.errors import ConfigError
from overt.geometry.body import BODY_JOINTS, HAND_JOINTS
from overt.geometry.crop import warp_batch
from overt.geometry.pose import mirror_pose, rotate_in_plane
from overt.geometry.rotation import axis_angle_to_matrix, matrix_to_axis_angle
from overt.ops.exact import exact_products
from overt.recipes.blade.camera import LIMB_JOINTS
from overt.recipes.blade.config import (
    AugmentationSettings,
    BodySettings,
    DataSettings,
    SyntheticSettings,
)
from overt.recipes.blade.data import DepthBatch, PoseBatch, people_options
from overt.recipes.blade.people import body_file

FACE_JOINTS = 3  # between body and hands


class LiveSample(NamedTuple):
    """The numbers of one sample."""

    person: DrawnPerson
    change: Change  # of the augmented crop


@dataclass(frozen=True)
class LiveBatch:
    """Samples that are not rendered yet."""

    people: Drawn
    changes: Changes  # of the augmented crops

    def __len__(self) -> int:
        return len(self.changes.factor)


def collate_live(samples: list[LiveSample]) -> LiveBatch:
    people = Drawn.of([sample.person for sample in samples])
    return LiveBatch(people, Changes.of([sample.change for sample in samples]))


class LivePeople:
    """Training samples: the numbers of a new person in every epoch."""

    def __init__(
        self,
        settings: DataSettings,
        body: BodySettings,
        augmentation: AugmentationSettings,
        side: tuple[float, float] = (1.0, 0.0),
    ) -> None:
        synthetic = settings.synthetic
        assert synthetic is not None
        assert synthetic.body is not None
        if synthetic.body != body.model:
            raise ConfigError(
                f"data.synthetic.live=true renders people with data.synthetic.body="
                f"{synthetic.body}, but model.body.model={body.model}; name the same body for both"
            )
        self.count, self.size = synthetic.train, synthetic.size
        self.augmentation = Augmentation(**dataclasses.asdict(augmentation))
        self.framed = photograph_options(synthetic)
        # Smallest factor of the crop's side, and largest increase; a photograph is a crop already.
        self.side = side if self.framed is None else (1.0, 0.0)
        folder = synthetic.live_backgrounds or synthetic.backgrounds
        self.photographs = Photographs(folder, synthetic.live_background_fraction)
        file = body_file(synthetic.body)
        rest_joints = file.J_regressor[:BODY_JOINTS] @ file.v_template
        self.rest_joints = rest_joints.astype(np.float64)

    def __len__(self) -> int:
        return self.count

    def sample(self, index: int, rng: np.random.Generator) -> LiveSample:
        """Return the numbers of one person and crop."""
        least, added = self.side
        side = least + added * rng.random()
        change = draw_change(self.augmentation, rng)
        change = change._replace(factor=side * change.factor)
        # A separate generator: that of the run could repeat people of the test set.
        own = np.random.default_rng(int(rng.integers(2**63)))
        person = draw_live(own, self.rest_joints, self.size, self.photographs, self.framed)
        return LiveSample(person, change)


def photograph_options(synthetic: SyntheticSettings) -> PhotographOptions | None:
    """Return how people are seen in crops of photographs, or None in another framing."""
    if not synthetic.is_photographic:
        return None
    numbers = dataclasses.asdict(synthetic.photograph)
    return PhotographOptions(**numbers | {"margin": tuple(numbers["margin"])})


class LiveRenderer:
    """Makes ready batches of sampled people, with one body for each device."""

    def __init__(self, settings: DataSettings) -> None:
        self.settings = settings
        self.studios: dict[torch.device, Studio] = {}

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"studios": {}}  # loader processes render nothing

    @torch.inference_mode(False)
    def studio(self, device: torch.device) -> Studio:
        """Return body and painter on a device, loaded once."""
        if device not in self.studios:
            assert self.settings.synthetic is not None
            synthetic = self.settings.synthetic
            options = people_options(synthetic, synthetic.seed)
            framing = synthetic.live_framing or synthetic.framing
            options = dataclasses.replace(options, framing=framing)
            self.studios[device] = Studio.open(options, device)
        return self.studios[device]

    def depth_batch(self, batch: LiveBatch) -> DepthBatch:
        """Return DepthNet's crops and distances."""
        shots = self.studio(batch.changes.factor.device).shoot(batch.people)
        crops, _ = cut_batch(
            shots.pictures, *squares(shots.boxes), self.settings.depth_size, batch.changes
        )
        return DepthBatch(crops, shots.depth, torch.isfinite(shots.depth))

    @torch.no_grad()
    def depth_maps(self, batch: LiveBatch) -> tuple[Tensor, Tensor]:
        """Return DepthNet's crops, and the depth of their pixels (B, n, n), 0 without a person."""
        changes, output = batch.changes, self.settings.depth_size
        shots = self.studio(changes.factor.device).shoot(batch.people)
        crops, affine = cut_batch(shots.pictures, *squares(shots.boxes), output, changes)
        assert shots.maps is not None, "people without depth maps"
        meters = torch.where(changes.mirrored[:, None, None], shots.maps.flip(-1), shots.maps)
        return crops, warp_batch(meters[:, None], affine, output, "nearest")[:, 0]

    @torch.no_grad()
    def pose_batch(self, batch: LiveBatch) -> PoseBatch:
        """Return both crops of PoseNet, and pose and keypoints as they are in the second."""
        settings, changes = self.settings, batch.changes
        device = changes.factor.device
        shots = self.studio(device).shoot(batch.people)
        depth_crops, _ = cut_batch(shots.pictures, *squares(shots.boxes), settings.depth_size)
        limbs = shots.joints[:, LIMB_JOINTS, :]  # (B, 12, 3)
        middle = torch.full_like(limbs[:, 0, :2], shots.pictures.shape[-1] / 2)
        if batch.people.photos is None:
            side = centred_sides(limbs, shots.pictures.shape[-1])
        else:  # the picture is the crop
            side = torch.full_like(middle[:, 0], shots.pictures.shape[-1])
        crops, affine = cut_batch(shots.pictures, middle, side, settings.pose_size, changes)
        with exact_products(device):
            pose = changed_pose(batch.people.people.pose, changes)
            sizes = shots.pictures.shape[-1], settings.pose_size
            keypoints = limbs_in_crop(limbs, changes, affine, *sizes)
            centre = in_crop(middle[:, None], changes, affine, *sizes)[:, 0]
        shape = batch.people.people.shape
        return PoseBatch(depth_crops, crops, pose, shape, shots.depth, keypoints, centre)


def squares(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Return centers (B, 2) and sides (B,) of the squares around boxes (B, 4)."""
    return boxes[:, :2] + boxes[:, 2:] / 2, boxes[:, 2:].amax(1).clamp_min(1.0)


def centred_sides(limbs: Tensor, size: int) -> Tensor:
    """Return sides (B,) of centered squares that cover visible keypoints (B, 12, 3)."""
    is_visible = limbs[..., 2] > 0
    distance = (limbs[..., :2] - size / 2).abs().amax(-1)
    reach = 2 * torch.where(is_visible, distance, 0.0).amax(1)
    return torch.where(is_visible.any(1), reach, float(size)).clamp(SMALLEST_CENTRED * size, size)


def changed_pose(pose: Tensor, changes: Changes) -> Tensor:
    """Return root, body and hands (B, 52, 3) as they are in the crop, of all joints (B, 55, 3)."""
    sizes = [1, BODY_JOINTS - 1, FACE_JOINTS, HAND_JOINTS, HAND_JOINTS]
    root, body, _, left, right = torch.split(pose, sizes, dim=1)
    mirrored = torch.cat(mirror_pose(root, body, left, right), dim=1)
    chosen = torch.where(
        changes.mirrored[:, None, None], mirrored, torch.cat([root, body, left, right], dim=1)
    )
    turned = rotate_in_plane(axis_angle_to_matrix(chosen[:, 0]), changes.degrees)
    is_turned = (changes.degrees != 0)[:, None]
    root = torch.where(is_turned, matrix_to_axis_angle(turned), chosen[:, 0])
    return torch.cat([root[:, None], chosen[:, 1:]], dim=1)


def in_crop(points: Tensor, changes: Changes, affine: Tensor, width: int, size: int) -> Tensor:
    """Return points (B, N, 2) of pictures of this width, 0 to 1 across their changed crops."""
    x, y = points.unbind(-1)
    x = torch.where(changes.mirrored[:, None], width - 1 - x, x)
    seen = torch.stack([x, y], dim=-1) @ affine[..., :2].mT + affine[:, None, :, 2]
    return seen / size


def limbs_in_crop(limbs: Tensor, changes: Changes, affine: Tensor, width: int, size: int) -> Tensor:
    """Return keypoints (B, 12, 3) from 0 to 1 across the crop, and whether they are in it."""
    sides = torch.where(changes.mirrored[:, None, None], limbs[:, LIMB_MIRROR, :], limbs)
    xy = in_crop(sides[..., :2], changes, affine, width, size)
    is_inside = ((xy > 0) & (xy < 1)).all(-1, keepdim=True)
    return torch.cat([xy, ((sides[..., 2:] > 0) & is_inside).float()], dim=-1)
