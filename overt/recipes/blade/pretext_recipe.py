"""Pretraining for stage 1 without published depth weights: per-pixel depth of rendered people.

Encoder and DPT head learn the depth of every pixel; DepthNet then uses them as its frozen backbone
(`model.depth.backbone_checkpoint`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from overt.data.images.decode import as_tensor
from overt.data.images.transforms import Normalize
from overt.data.people.crops import Augmentation, Crop, cut, draw_crop
from overt.distributed import World
from overt.errors import ConfigError
from overt.evaluation import Row, score_batches, summarize, with_names
from overt.geometry.crop import warp_nearest
from overt.recipe import Recipe, SampleSource, StepOutput
from overt.recipes.blade.build import build_backbone
from overt.recipes.blade.config import CONV, DataSettings, DepthNetSettings
from overt.recipes.blade.data import make_evaluation_data, make_missing_data, open_evaluation
from overt.recipes.blade.dpt import DepthAnything
from overt.recipes.blade.example import example_samples
from overt.recipes.blade.live import LiveBatch, LivePeople, LiveRenderer, collate_live
from overt.recipes.blade.people import LabeledPeople, People

NEAREST_M = 0.05  # predicted depths below this are taken for it


class DepthMapSample(NamedTuple):
    image: Tensor  # (3, S, S) uint8
    depth: Tensor  # (S, S) meters; 0 where it is not known


@dataclass(frozen=True)
class DepthMapBatch:
    images: Tensor  # (B, 3, S, S) uint8
    depth: Tensor  # (B, S, S) meters


def collate_maps(samples: list[DepthMapSample]) -> DepthMapBatch:
    return DepthMapBatch(
        torch.stack([sample.image for sample in samples]),
        torch.stack([sample.depth for sample in samples]),
    )


class DepthMaps:
    """Crops of people with the depth of every pixel."""

    def __init__(self, people: LabeledPeople, settings: DataSettings) -> None:
        self.people, self.size = people, settings.depth_size
        self.augmentation = Augmentation(**dataclasses.asdict(settings.depth_augmentation))

    def __len__(self) -> int:
        return len(self.people)

    def sample(self, index: int, rng: np.random.Generator) -> DepthMapSample:
        picture = self.people.picture(index)
        size = picture.shape[:2]
        centre, side = self.people.square(index, size)
        return self.cut(index, picture, draw_crop(centre, side, size, self.augmentation, rng))

    def unchanged(self, index: int) -> DepthMapSample:
        """The crop as it is labeled."""
        picture = self.people.picture(index)
        return self.cut(index, picture, Crop(*self.people.square(index, picture.shape[:2])))

    def cut(self, index: int, picture: np.ndarray, crop: Crop) -> DepthMapSample:
        pixels, affine = cut(picture, crop, self.size)
        depth = self.people.depth_map(index)
        depth = depth[:, ::-1] if crop.mirrored else depth
        cropped = warp_nearest(depth, affine, self.size).astype(np.float32)
        return DepthMapSample(as_tensor(pixels), torch.from_numpy(cropped))


class DepthMapModel(nn.Module):
    """Holds the depth backbone under the name that DepthNet uses."""

    def __init__(self, backbone: DepthAnything) -> None:
        super().__init__()
        self.pixels = Normalize()
        self.depth_backbone = backbone

    def forward(self, images: Tensor) -> Tensor:  # (B, 3, S, S) uint8 to (B, S, S) meters
        return self.depth_backbone.depth_m(self.pixels(images))[:, 0].float()


class PretextRecipe(Recipe):
    """Predicts the depth of every pixel of a person."""

    prepares_beside_step = True  # people are rendered while the last ones are trained on

    def __init__(self, settings: DepthNetSettings) -> None:
        self.settings = settings
        self.live = LiveRenderer(settings.data)
        synthetic = settings.data.synthetic
        if synthetic is not None and synthetic.live and not synthetic.depth_maps:
            raise ConfigError(
                "data.synthetic.depth_maps=false: the pretext needs the depth of every pixel; set "
                "data.synthetic.depth_maps=true"
            )
        if settings.model.depth.encoder == CONV:
            raise ConfigError(
                "model.depth.encoder=conv is trained with DepthNet and needs no pretext; use vits, "
                "vitb, vitl or custom"
            )

    def build_model(self) -> DepthMapModel:
        backbone = build_backbone(self.settings.model.depth, self.settings.data.depth_size)
        assert isinstance(backbone, DepthAnything)
        return DepthMapModel(backbone)

    def build_dataset(self) -> SampleSource:
        data = self.settings.data
        if data.is_live:
            return LivePeople(data, self.settings.model.body, data.depth_augmentation)
        make_missing_data(data)
        if len(data.sources) != 1:
            raise ConfigError(
                f"the pretext takes one data set; data.sources has {len(data.sources)}"
            )
        body, root = self.settings.model.body, Path(data.root)
        return DepthMaps(People(data.sources[0], data, body, root, needs_pose=False), data)

    def collate(self, samples: list[Any]) -> DepthMapBatch | LiveBatch:
        return collate_live(samples) if self.settings.data.is_live else collate_maps(samples)

    def on_device(self, batch: DepthMapBatch | LiveBatch) -> DepthMapBatch:
        if isinstance(batch, LiveBatch):
            return DepthMapBatch(*self.live.depth_maps(batch))
        return batch

    def example_batch(self, size: int) -> DepthMapBatch:
        """Return crops of noise, with a depth for nearly all pixels."""
        return collate_maps(example_samples(DepthMaps, self.settings.data, size))

    def counts(self, batch: DepthMapBatch | LiveBatch) -> dict[str, Tensor]:
        if isinstance(batch, LiveBatch):  # which pixels show a person is known after rendering only
            return {"pixels": torch.tensor(float(len(batch) * self.settings.data.depth_size**2))}
        return {"pixels": (batch.depth > 0).sum()}

    def blocks(self, model: DepthMapModel) -> list[nn.Module]:
        return list(model.depth_backbone.pretrained.blocks)

    def loss(
        self, model: nn.Module, batch: DepthMapBatch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        errors = log_errors(model(batch.images), batch.depth)
        return StepOutput({"log_depth": errors.sum() / counts["pixels"].clamp_min(1.0)})

    def check_evaluation_data(self) -> None:
        settings = self.settings
        make_evaluation_data(settings.data, settings.evaluation)
        people = open_evaluation(settings.data, settings.evaluation, settings.model.body, False)
        people.depth_map(0)

    def evaluate(self, model: DepthMapModel, world: World) -> dict[str, float]:
        return summarize(self.evaluate_rows(model, world))

    def evaluate_rows(self, model: DepthMapModel, world: World) -> list[dict[str, Any]]:
        """Return the mean error of the log depth over each person's pixels."""
        settings = self.settings
        make_evaluation_data(settings.data, settings.evaluation)
        people = open_evaluation(settings.data, settings.evaluation, settings.model.body, False)
        maps = DepthMaps(people, settings.data)
        count = min(len(maps), settings.evaluation.max_samples or len(maps))
        device = next(model.parameters()).device

        def score(chosen: range) -> list[Row]:
            batch = collate_maps([maps.unchanged(row) for row in chosen])
            true = batch.depth.to(device)
            errors = log_errors(model(batch.images.to(device)), true).sum((1, 2))
            means = errors / (true > 0).sum((1, 2))
            return [{"log_depth": value} for value in means.tolist()]

        rows = score_batches(world, count, settings.evaluation.batch_size, score)
        names = [str(people.data.columns["image_path"][row]) for row in range(count)]
        return with_names(names, rows)

    def visualize(self, model: DepthMapModel) -> dict[str, Tensor]:
        """Draw crops with predicted and true depth, bright where near."""
        settings = self.settings
        people = open_evaluation(settings.data, settings.evaluation, settings.model.body, False)
        maps = DepthMaps(people, settings.data)
        rows = range(min(settings.evaluation.drawn, len(maps)))
        batch = collate_maps([maps.unchanged(row) for row in rows])
        keypoints = model(batch.images.to(next(model.parameters()).device)).cpu()

        def gray(depth: Tensor) -> Tensor:  # (B, S, S) to (B, 3, S, S)
            near = torch.where(batch.depth > 0, 1.0 / depth.clamp_min(NEAREST_M), 0.0)
            near = near / near.amax((1, 2), keepdim=True).clamp_min(1e-6)
            return (255 * near).to(torch.uint8)[:, None].expand(-1, 3, -1, -1)

        columns = torch.cat([batch.images, gray(keypoints), gray(batch.depth)], dim=2)
        return {"depth_maps": torch.cat(list(columns), dim=2)}


def log_errors(predicted: Tensor, true: Tensor) -> Tensor:
    """Return |log predicted - log true| of each pixel, 0 without ground truth."""
    has_depth = true > 0
    safe = torch.where(has_depth, true, torch.ones_like(true))
    difference = (predicted.clamp_min(NEAREST_M).log() - safe.log()).abs()
    return torch.where(has_depth, difference, 0.0)
