"""Baselines under the roof of H-JEPA: the same encoder, images, views and evaluation.

SimCLR (arXiv:2002.05709) makes two views of an image alike, a supervised encoder learns its label
(from random weights, or fine-tuned from trained ones), and MAE (arXiv:2111.06377) predicts the
pixels of hidden patches. Shapes: B images, V views.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overt.data.images.folder import Images
from overt.data.rng import sample_rng
from overt.distributed import World, all_reduce_sum, get_world_size
from overt.errors import ConfigError
from overt.evaluation import own_batches, read_ahead
from overt.nn.vit import VisionTransformer, initialize
from overt.ops.float64 import sum_dtype
from overt.recipe import SampleSource, StepOutput
from overt.recipes.hjepa import evaluation, mixing
from overt.recipes.hjepa.config import Settings
from overt.recipes.hjepa.data import draw_views, make_missing_data, read_view, stack_images
from overt.recipes.hjepa.encoder import FeatureModel
from overt.recipes.hjepa.encoder_recipe import EncoderRecipe
from overt.recipes.hjepa.example import NoiseImages
from overt.recipes.hjepa.fine_tuning import adapt_encoder, labeled_images, layer_groups
from overt.recipes.hjepa.mixing import Pull
from overt.recipes.hjepa.mixture import with_mixture
from overt.recipes.hjepa.model import HJEPA, Layout
from overt.recipes.hjepa.recipe import HJEPARecipe


@dataclass(frozen=True)
class ViewSample:
    """An image as it is stored, and the views to make of it; or the views themselves."""

    image: Tensor  # (3, H, W) uint8, or (V, 3, H, W)
    views: Tensor | None  # (V, 15)
    label: int


@dataclass(frozen=True)
class ViewBatch:
    images: Tensor  # (B, 3, H, W) uint8, the first view; or as stored, where there are `views`
    second: Tensor | None  # (B, 3, H, W) uint8
    labels: Tensor  # (B,)
    views: Tensor | None = None  # (B, V, 15)
    layout: Layout | None = None  # nothing is masked
    is_padding: bool = False  # only keeps the processes in step
    pull: Pull | None = None  # of a term that mixes all micro-batches


class ViewedImages:
    """Training images with one or two views each, drawn from the sample's own generator."""

    def __init__(self, images: Images, recipe: BaselineRecipe) -> None:
        self.images, self.transform, self.count = images, recipe.transform, recipe.views
        self.on_device = recipe.settings.data.augmentation.device
        self.reduces = recipe.settings.data.reduced_decode

    def __len__(self) -> int:
        return len(self.images)

    def sample(self, index: int, rng: np.random.Generator) -> ViewSample:
        if self.reduces:
            view, label = read_view(self.images, index, self.transform, rng)
            return ViewSample(view[None], None, label)
        pixels, label = self.images.read(index)
        if self.on_device:
            return ViewSample(pixels, draw_views(self.transform, pixels, self.count, rng), label)
        views = [self.transform(pixels, rng) for _ in range(self.count)]
        return ViewSample(torch.stack(views), None, label)


class BaselineRecipe(EncoderRecipe):
    """A method without masks: it sees whole views of images."""

    views = 1
    replayable: bool | str = True
    unscored = ("head.",)

    def build_dataset(self) -> SampleSource:
        make_missing_data(self.settings.data)
        data = self.settings.data
        return with_mixture(data, self.sets[0], lambda images: ViewedImages(images, self))

    def collate(self, samples: list[ViewSample]) -> ViewBatch:
        labels = torch.tensor([sample.label for sample in samples])
        if samples[0].views is not None:
            images = stack_images([sample.image for sample in samples])
            rows = torch.stack([sample.views for sample in samples if sample.views is not None])
            return ViewBatch(images, None, labels, rows)
        first, *second = torch.stack([sample.image for sample in samples], dim=1)
        return ViewBatch(first, second[0] if second else None, labels)

    def on_device(self, batch: ViewBatch) -> ViewBatch:
        """Make the views of a batch that comes with its images as they are stored."""
        if batch.views is None:
            return batch
        images, *second = self.make_views(batch.images, batch.views)
        return replace(batch, images=images, second=second[0] if second else None, views=None)

    def example_batch(self, size: int) -> ViewBatch:
        """Return views of noise."""
        source = ViewedImages(NoiseImages(size, self.settings.data.image_size), self)
        samples = [source.sample(index, sample_rng(0, 0, index)) for index in range(size)]
        return self.collate([replace(sample, label=0) for sample in samples])

    def blocks(self, model: FeatureModel) -> list[nn.Module]:
        return list(model.context_encoder.vit.blocks)

    def compile_units(self, model: FeatureModel) -> list[nn.Module]:
        return list(model.context_encoder.vit.chains)


# --- SimCLR --------------------------------------------------------------------------------------


class SimCLR(FeatureModel):
    """An encoder and a head of two layers, which is not used when features are scored."""

    def __init__(
        self, encoder: VisionTransformer, hidden: int, width: int, pixels: nn.Module
    ) -> None:
        super().__init__(encoder, pixels, use_target_encoder=False)
        features = encoder.norm.weight.numel()
        self.head = nn.Sequential(
            nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, width, bias=False)
        )
        initialize(self.head, fan_in=True)

    def forward(self, images: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is compared of both views, (B, width) each."""
        tokens = self.context_encoder.vit(self.pixels(torch.cat([images, second])))
        first, second_view = self.head(self.summarize(tokens)).chunk(2)
        return first, second_view

    def see(
        self, images: Tensor, layout: Layout | None, second: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return `forward` as mixing.py asks for it."""
        both = self.forward(images, second)
        return both[0], both


class SimCLRRecipe(BaselineRecipe):
    """NT-Xent between two views of the images of the whole global batch."""

    views = 2

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        if settings.data.reduced_decode:
            raise ConfigError(
                "data.reduced_decode=true has no effect with two views of an image; set "
                "data.reduced_decode=false"
            )
        if settings.loss.extra != "contrastive":
            raise ConfigError(
                f"loss.type={settings.loss.type}, but SimCLR compares two views of each image; set "
                "loss.type=cjepa"
            )
        self.replayable: bool | str = True
        if get_world_size() > 1:
            self.replayable = mixing.NOT_REPLAYED

    def build_model(self) -> SimCLR:
        head = self.settings.model.head
        return SimCLR(self.build_encoder(), head.hidden, head.width, self.build_pixels())

    def loss(
        self, model: nn.Module, batch: ViewBatch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        pair: tuple[Tensor, Tensor] = model(batch.images, batch.second)
        fraction = len(batch.images) / counts["samples"]
        # The loss is float32 whatever the model computes in.
        with torch.autocast(batch.images.device.type, enabled=False):
            features = mixing.choose(pair[0], pair, batch.is_padding)
            if batch.pull is None:
                term, shown = mixing.mixed(features, self.settings.loss, step)
                term = term * fraction
            else:
                term, shown = batch.pull.on(features, fraction), batch.pull.shown
        metrics = {name: value * fraction for name, value in shown.items()}
        return StepOutput({"contrastive": term}, metrics)

    def custom_step(
        self, trainer: Any, micro_batches: list[Any], counts: dict[str, Tensor]
    ) -> tuple[list[StepOutput], Tensor, Tensor]:
        """The engine's own step; the loss sees all micro-batches before it."""
        micro_batches = mixing.pull_together(trainer, micro_batches, self.settings.loss)
        return trainer.add_gradients(micro_batches, counts), *trainer.update()


# --- labels --------------------------------------------------------------------------------------


class Classifier(FeatureModel):
    """An encoder and one linear layer."""

    def __init__(self, encoder: VisionTransformer, classes: int, pixels: nn.Module) -> None:
        super().__init__(encoder, pixels, use_target_encoder=False)
        self.head = nn.Linear(encoder.norm.weight.numel(), classes)
        initialize(self.head)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes, (B, C)."""
        tokens = self.context_encoder.vit(self.pixels(images))
        return self.head(self.summarize(tokens))  # type: ignore[no-any-return]

    def adapt_tensors(
        self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any] | None = None
    ) -> dict[str, Tensor]:
        """Return the encoder of any method, of timm or of I-JEPA, under this model's keys."""
        return adapt_encoder(tensors, self.context_encoder.vit, self.head.state_dict(), settings)


class SupervisedRecipe(BaselineRecipe):
    """What the same encoder learns from labels, from random or from trained weights."""

    learns_labels = True

    def build_model(self) -> Classifier:
        return Classifier(self.build_encoder(), self.settings.model.head.width, self.build_pixels())

    def build_dataset(self) -> ViewedImages:
        make_missing_data(self.settings.data)
        return ViewedImages(labeled_images(self.sets[0], self.settings), self)

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        chosen = self.settings.model
        return layer_groups(model, chosen.sizes().depth, chosen.head.layer_decay, chosen.no_decay)

    def loss(
        self, model: nn.Module, batch: ViewBatch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        logits = model(batch.images).float()
        loss = F.cross_entropy(
            logits,
            batch.labels,
            reduction="sum",
            label_smoothing=self.settings.loss.label_smoothing,
        )
        right = (logits.argmax(1) == batch.labels).sum()
        return StepOutput(
            {"cross_entropy": loss / counts["samples"]},
            {"accuracy": right.detach() / counts["samples"]},
        )

    def evaluate(self, model: Classifier, world: World) -> dict[str, float]:
        """Return the accuracy of the classifier itself, and the scores of its frozen features."""
        settings = self.settings.evaluation
        scores = super().evaluate(model, world) if settings.frozen_features else {}
        _, held_out = self.scored_sets()
        used = evaluation.images_used(held_out, settings.max_samples)
        # correct, counted
        right = torch.zeros(2, dtype=sum_dtype(world.device), device=world.device)
        for _, pixels, labels in read_ahead(
            partial(evaluation.read_images, held_out, used),
            own_batches(world, len(used), settings.batch_size),
            settings.num_workers,
        ):
            if len(labels):
                predicted = model(pixels.to(world.device)).argmax(1)
                right[0] += (predicted == labels.to(world.device)).sum()
                right[1] += len(labels)
        correct, counted = all_reduce_sum(right).tolist()
        return scores | {"classifier_top1": correct / max(counted, 1)}


# --- MAE -----------------------------------------------------------------------------------------


class MAE(HJEPA):
    """Predicts the pixels of hidden patches, each patch with mean and scale taken off."""

    def encode_targets(self, images: Tensor) -> Tensor:
        """Return the pixels of all patches, (B N, 3 p p)."""
        size = self.context_encoder.vit.patch_embed.patch_size
        batch, channels, height, width = images.shape
        shape = (batch, channels, height // size, size, width // size, size)
        return images.reshape(shape).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(0, 2)


class MAERecipe(HJEPARecipe):
    """MAE with H-JEPA's predictor as decoder; set data.masking.kind=random."""

    model_class = MAE

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        # Layers that take the encoder's features, where these are pixels.
        for key, value, allowed in (
            ("projection", settings.model.projection, "none"),
            ("predictor.kind", settings.model.predictor.kind, "narrow"),
        ):
            if value != allowed:
                raise ConfigError(
                    f"model.{key}={value} is for targets that are features, and MAE predicts "
                    f"pixels; set model.{key}={allowed}"
                )
        self.target_width = 3 * settings.model.patch() ** 2
