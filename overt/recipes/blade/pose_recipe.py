"""Stage 2 as a recipe: PoseNet on top of a frozen DepthNet, and the scores of the protocols."""

from __future__ import annotations

import dataclasses
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overt.distributed import World
from overt.errors import ConfigError
from overt.evaluation import summarize
from overt.geometry.body import BODY_JOINTS, HAND_JOINTS, BodyModel
from overt.geometry.rotation import axis_angle_to_matrix
from overt.recipe import Recipe, SampleSource, StepOutput
from overt.recipes.blade.build import build_body, build_posenet, require_pose_files
from overt.recipes.blade.camera import LIMB_JOINTS
from overt.recipes.blade.config import PoseNetSettings
from overt.recipes.blade.data import (
    PoseBatch,
    PoseSource,
    check_scored_pictures,
    collate_pose,
    make_evaluation_data,
    open_evaluation,
    open_training,
)
from overt.recipes.blade.depthnet import DepthNet
from overt.recipes.blade.dpt import DepthAnything
from overt.recipes.blade.estimate import estimate_person
from overt.recipes.blade.evaluation import table
from overt.recipes.blade.example import example_samples
from overt.recipes.blade.live import LiveBatch, LivePeople, LiveRenderer, collate_live
from overt.recipes.blade.loss import Bodies, Weights, pose_distances, pose_losses
from overt.recipes.blade.metric_mesh import MetricMesh
from overt.recipes.blade.people import require_scored
from overt.recipes.blade.pose_scores import (
    Scorer,
    check_scored_masks,
    draw_people,
    require_source,
)
from overt.recipes.blade.posenet import PoseNet, PoseOutput
from overt.recipes.blade.silhouette import silhouette_errors, true_silhouettes
from overt.tasks import PersonEstimate


class PoseNetRecipe(Recipe):
    """Predicts pose and shape of a person from a picture and the predicted depth."""

    replayable = True
    prepares_beside_step = True  # people are rendered while the last ones are trained on
    compile_pays = "compiling its parts takes minutes, and a recording alone halves the step"

    def __init__(self, settings: PoseNetSettings) -> None:
        self.settings = settings
        self.bodies: dict[torch.device, BodyModel] = {}
        self.live = LiveRenderer(settings.data)

    def build_model(self) -> PoseNet:
        return build_posenet(self.settings.model, self.settings.data.depth_size)

    def build_dataset(self) -> SampleSource:
        model, data = self.settings.model, self.settings.data
        if model.tz_conditioning and model.depthnet_checkpoint is None:
            raise ConfigError(
                "PoseNet is trained on top of stage 1: set model.depthnet_checkpoint to a "
                "checkpoint of DepthNet (runs/blade_depthnet/checkpoints/best), or run both by "
                "`overt stages`. model.tz_conditioning=false trains the base without a depth"
            )
        require_pose_files(model)
        if data.is_live:
            least, added = data.pose_side
            return LivePeople(data, model.body, data.pose_augmentation, (least, added))
        return open_training(data, model.body, PoseSource)

    def collate(self, samples: list[Any]) -> PoseBatch | LiveBatch:
        return collate_live(samples) if self.settings.data.is_live else collate_pose(samples)

    def on_device(self, batch: PoseBatch | LiveBatch) -> PoseBatch:
        if isinstance(batch, LiveBatch):
            batch = self.live.pose_batch(batch)
        if not self.settings.model.silhouette_head:
            return batch
        silhouettes = true_silhouettes(
            self.body(batch.pose.device),
            true_rotations(batch.pose),
            batch.shape,
            batch.depth,
            batch.keypoints,
            batch.centre,
            self.settings.data.pose_size,
        )
        return dataclasses.replace(batch, silhouettes=silhouettes)

    def example_batch(self, size: int) -> PoseBatch:
        """Return crops of noise with people in different poses."""
        return self.on_device(collate_pose(example_samples(PoseSource, self.settings.data, size)))

    def counts(self, batch: PoseBatch | LiveBatch) -> dict[str, Tensor]:
        if isinstance(batch, LiveBatch):  # which keypoints are seen is known after rendering only
            return {"keypoints": torch.tensor(float(len(LIMB_JOINTS) * len(batch)))}
        return {"keypoints": batch.keypoints[..., 2].sum()}

    def replays_at(self, step: int) -> int:
        return side_of_step(self.settings.data.pose_step_sizes, step)  # a recording for each side

    def blocks(self, model: PoseNet) -> list[nn.Module]:
        return [*_frozen_blocks(model), *model.branch.layers]

    def compile_units(self, model: PoseNet) -> list[nn.Module]:
        """Return the blocks of the frozen encoder, and each branch as a whole."""
        base = [] if model.base is None else [model.base]
        return [*_frozen_blocks(model), model.branch, *base, model.heads]

    @torch.inference_mode(False)
    def body(self, device: torch.device) -> BodyModel:
        """Return the body model on a device; cached, also usable with gradients."""
        if device not in self.bodies:
            self.bodies[device] = build_body(self.settings.model.body).to(device)
        return self.bodies[device]

    def loss(
        self, model: nn.Module, batch: PoseBatch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        images = resize_for_step(batch.pose_images, self.settings.data.pose_step_sizes, step)
        output: PoseOutput = model(batch.depth_images, images)
        samples = counts["samples"]
        settings = self.settings.loss
        weights = Weights(
            settings.root_weight,
            settings.body_pose_weight,
            settings.shape_weight,
            settings.body_joint_weight,
            settings.vert_weight,
        )
        # Rotations and meters are float32, whatever the precision of the model.
        with torch.autocast(images.device.type, enabled=False):
            body = self.body(images.device)
            with torch.no_grad():
                labeled = true_rotations(batch.pose)
            # Hands and face are not predicted: those of the label are used, so that they add no
            # error.
            full_pose = torch.cat([output.rotations, labeled[:, BODY_JOINTS:]], dim=1)
            predicted, true = both_bodies(body, (full_pose, labeled), (output.shape, batch.shape))
            terms = pose_losses(predicted, true, weights)
            losses = {name: term / samples for name, term in terms.items()}
            shown = pose_distances(predicted, true)
            metrics = {name: value / samples for name, value in shown.items()}
            if output.keypoints is not None and output.keypoints.requires_grad:
                distance = (output.keypoints - batch.keypoints[..., :2]).abs().sum(-1)
                keypoint_error = (distance * batch.keypoints[..., 2]).sum()
                total = counts["keypoints"].clamp_min(1.0)
                losses["keypoint_loss"] = settings.keypoint_weight * keypoint_error / total
            if output.visible is not None:
                errors = F.binary_cross_entropy_with_logits(
                    output.visible, batch.keypoints[..., 2], reduction="none"
                ).mean(1)
                losses["visibility_loss"] = settings.visibility_weight * errors.sum() / samples
            if output.silhouette is not None:
                assert batch.silhouettes is not None
                errors, overlap = silhouette_errors(output.silhouette, batch.silhouettes)
                losses["silhouette_loss"] = settings.silhouette_weight * errors.sum() / samples
                metrics["silhouette_iou"] = overlap.sum() / samples
            if output.depth is not None:
                errors = (output.depth - batch.depth).abs().sum()
                metrics["Tz_error"] = errors.detach() / samples
        return StepOutput(losses, metrics)

    def largest_step(self) -> int:
        sizes = self.settings.data.pose_step_sizes
        return next(step for step in count(1) if side_of_step(sizes, step) == max(sizes))

    # --- evaluation ------------------------------------------------------------------------------

    def check_evaluation_data(self) -> None:
        settings = self.settings
        require_source(settings)
        make_evaluation_data(settings.data, settings.evaluation)
        people = open_evaluation(settings.data, settings.evaluation, settings.model.body, False)
        require_scored(people.data)
        body = self.body(torch.device("cpu"))
        MetricMesh(body, settings.model.body, people.data.has("smplx")).check(people.data)
        check_scored_pictures(people, settings.evaluation)
        check_scored_masks(people, settings.evaluation)

    def evaluate(self, model: PoseNet, world: World) -> dict[str, float]:
        return summarize(self.evaluate_rows(model, world))

    def evaluate_rows(self, model: PoseNet, world: World) -> list[dict[str, Any]]:
        """Return errors of joints, vertices, depth and camera, and overlaps, for each person."""
        make_evaluation_data(self.settings.data, self.settings.evaluation)
        return self.scorer(model).rows(world)

    def scorer(self, model: PoseNet) -> Scorer:
        model.require_weights()
        settings = self.settings
        people = open_evaluation(
            settings.data, settings.evaluation, settings.model.body, needs_pose=False
        )
        device = next(model.parameters()).device
        return Scorer(model, self.body(device), people, settings)

    def score_table(self, rows: list[dict[str, Any]], scores: dict[str, float]) -> str:
        return table(self.settings.evaluation.dataset, rows, scores)

    def visualize(self, model: PoseNet) -> dict[str, Tensor]:
        """Draw pictures with the estimated mesh over them."""
        if model.depthnet is None:
            return {}
        return {"meshes": draw_people(self.scorer(model), self.settings.evaluation.drawn)}

    def predicts_mask(self) -> bool:
        """Return whether the model predicts the silhouette of a person, for `overt estimate`."""
        return self.settings.model.silhouette_head

    def estimate(
        self,
        model: PoseNet,
        picture: np.ndarray,
        mask: np.ndarray | None = None,
        keypoints: np.ndarray | None = None,
        box: np.ndarray | None = None,
        focal: float | None = None,
    ) -> PersonEstimate:
        """Estimate mesh and camera of a person in (H, W, 3) uint8, for `overt estimate`."""
        model.require_weights()
        device = next(model.parameters()).device
        body = self.body(device)
        return estimate_person(model, body, self.settings, picture, mask, keypoints, box, focal)


def _frozen_blocks(model: PoseNet) -> list[nn.Module]:
    depthnet = model.depthnet
    if isinstance(depthnet, DepthNet) and isinstance(depthnet.depth_backbone, DepthAnything):
        return list(depthnet.depth_backbone.pretrained.blocks)
    return []


def bodies_of(body: BodyModel, rotations: Tensor, shape: Tensor) -> Bodies:
    """Bodies relative to their pelvis."""
    result = body(shape, rotations)
    pelvis = result.joints[:, :1]
    return Bodies(
        rotations[:, :BODY_JOINTS], shape, result.joints - pelvis, result.vertices - pelvis
    )


def both_bodies(
    body: BodyModel, rotations: tuple[Tensor, Tensor], shapes: tuple[Tensor, Tensor]
) -> tuple[Bodies, Bodies]:
    """Return predicted and true bodies, computed in one pass with half the launches."""
    bodies = bodies_of(body, torch.cat(rotations), torch.cat(shapes))
    first, second = (Bodies(*parts) for parts in zip(*(p.chunk(2) for p in bodies), strict=True))
    return first, Bodies(*(part.detach() for part in second))


def true_rotations(pose: Tensor) -> Tensor:
    """Return labels (B, 52, 3) as rotations of all 55 joints; jaw and eyes are at rest."""
    matrices = axis_angle_to_matrix(pose)
    identity = torch.eye(3, device=pose.device).expand(len(pose), 3, 3, 3)
    hands = matrices[:, BODY_JOINTS : BODY_JOINTS + 2 * HAND_JOINTS]
    return torch.cat([matrices[:, :BODY_JOINTS], identity, hands], dim=1)


def side_of_step(sizes: list[int], step: int) -> int:
    """Return the picture size of this step."""
    return sizes[int(np.random.default_rng(step).integers(len(sizes)))]


def resize_for_step(images: Tensor, sizes: list[int], step: int) -> Tensor:
    """Resize all pictures of a step to one of the sizes, the same on every rank."""
    side = side_of_step(sizes, step)
    if side == images.shape[-1]:
        return images
    return F.interpolate(images.float(), (side, side), mode="bilinear", align_corners=True)
