"""Stage 1 as a recipe: DepthNet, trained on the relative error of the pelvis depth."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from overt.distributed import World
from overt.errors import ConfigError
from overt.evaluation import Row, score_batches, summarize, with_names
from overt.recipe import Recipe, SampleSource, StepOutput
from overt.recipes.blade.build import build_depthnet, require_depth_files
from overt.recipes.blade.config import CONV, DepthNetSettings
from overt.recipes.blade.data import (
    DepthBatch,
    DepthSource,
    check_scored_pictures,
    collate_depth,
    depth_crop,
    make_evaluation_data,
    open_evaluation,
    open_training,
    scored_count,
)
from overt.recipes.blade.depthnet import DepthNet
from overt.recipes.blade.dpt import DepthAnything
from overt.recipes.blade.evaluation import depth_row, table
from overt.recipes.blade.example import example_samples
from overt.recipes.blade.live import LiveBatch, LivePeople, LiveRenderer, collate_live
from overt.recipes.blade.loss import depth_errors
from overt.viz.mesh import write_on

HEAD_RATE = 2.0  # the head learns twice as fast as the interface


class DepthNetRecipe(Recipe):
    """Predicts the distance of a person from a crop."""

    replayable = True
    prepares_beside_step = True  # people are rendered while the last ones are trained on

    def __init__(self, settings: DepthNetSettings) -> None:
        self.settings = settings
        self.live = LiveRenderer(settings.data)

    def build_model(self) -> DepthNet:
        return build_depthnet(self.settings.model.depth, self.settings.data.depth_size)

    def build_dataset(self) -> SampleSource:
        depth = self.settings.model.depth
        if depth.freeze_backbone and depth.backbone_checkpoint is None:
            raise ConfigError(
                "model.depth.freeze_backbone=true needs model.depth.backbone_checkpoint: weights "
                "of Depth-Anything-V2 (metric, Hypersim; huggingface.co/depth-anything) or of a "
                "run of recipe=blade_pretext. Without any, set model.depth.freeze_backbone=false"
            )
        require_depth_files(depth)
        data, body = self.settings.data, self.settings.model.body
        if data.is_live:
            return LivePeople(data, body, data.depth_augmentation)
        return open_training(data, body, DepthSource)

    def collate(self, samples: list[Any]) -> DepthBatch | LiveBatch:
        return collate_live(samples) if self.settings.data.is_live else collate_depth(samples)

    def on_device(self, batch: DepthBatch | LiveBatch) -> DepthBatch:
        return self.live.depth_batch(batch) if isinstance(batch, LiveBatch) else batch

    def example_batch(self, size: int) -> DepthBatch:
        """Return crops of noise with people at different depths."""
        return collate_depth(example_samples(DepthSource, self.settings.data, size))

    def parameter_groups(self, model: DepthNet) -> list[dict[str, Any]]:
        """Train the head at twice the rate of the interface and of a trainable backbone."""
        groups: dict[bool, list[tuple[str, nn.Parameter]]] = {False: [], True: []}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                groups[name.startswith("depth_head.")].append((name, parameter))
        rate = 1.0 if self.settings.model.depth.encoder == CONV else HEAD_RATE
        parts: list[dict[str, Any]] = [
            {"params": groups[False]},
            {"params": groups[True], "lr_scale": rate},
        ]
        return [part for part in parts if part["params"]]

    def blocks(self, model: DepthNet) -> list[nn.Module]:
        backbone = model.depth_backbone
        return list(backbone.pretrained.blocks) if isinstance(backbone, DepthAnything) else []

    def compile_units(self, model: DepthNet) -> list[nn.Module]:
        """Return the blocks of the encoder, and the DPT head, whose biases and ReLUs then fuse."""
        backbone = model.depth_backbone
        head = [backbone.depth_head] if isinstance(backbone, DepthAnything) else []
        return [*self.blocks(model), *head]

    def loss(
        self, model: nn.Module, batch: DepthBatch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        predicted: Tensor = model(batch.images)[:, 0]
        # The mean is over all samples, including those without a known depth.
        errors = depth_errors(predicted, batch.depth, batch.known).sum() / counts["samples"]
        metres = torch.where(batch.known, (predicted - batch.depth).abs(), 0.0).sum()
        return StepOutput(
            {"z_loss": self.settings.loss.weight * errors},
            {"z_error": metres.detach() / counts["samples"]},
        )

    def check_evaluation_data(self) -> None:
        settings = self.settings
        make_evaluation_data(settings.data, settings.evaluation)
        people = open_evaluation(settings.data, settings.evaluation, settings.model.body, False)
        check_scored_pictures(people, settings.evaluation)

    def evaluate(self, model: DepthNet, world: World) -> dict[str, float]:
        return summarize(self.evaluate_rows(model, world))

    def evaluate_rows(self, model: DepthNet, world: World) -> list[dict[str, Any]]:
        """Depth errors of each person."""
        model.require_weights("Set model.depth.backbone_checkpoint.")
        settings = self.settings
        make_evaluation_data(settings.data, settings.evaluation)
        people = open_evaluation(settings.data, settings.evaluation, settings.model.body, False)
        device = next(model.parameters()).device
        count = scored_count(people, settings.evaluation)

        def score(chosen: range) -> list[Row]:
            crops = [
                depth_crop(people, row, people.picture(row), settings.data.depth_size)
                for row in chosen
            ]
            depths = model(torch.stack(crops).to(device))[:, 0].float().cpu().tolist()
            return [
                depth_row(depth, float(people.pelvis(row)[2]))
                for row, depth in zip(chosen, depths, strict=True)
            ]

        rows = score_batches(world, count, settings.evaluation.batch_size, score)
        names = [str(people.data.columns["image_path"][row]) for row in range(count)]
        return with_names(names, rows)

    def score_table(self, rows: list[dict[str, Any]], scores: dict[str, float]) -> str:
        return table(self.settings.evaluation.dataset, rows, scores)

    def visualize(self, model: DepthNet) -> dict[str, Tensor]:
        """Draw crops with predicted and true depth written on them."""
        settings = self.settings
        people = open_evaluation(settings.data, settings.evaluation, settings.model.body, False)
        device = next(model.parameters()).device
        rows = range(min(settings.evaluation.drawn, len(people)))
        crops = torch.stack(
            [depth_crop(people, row, people.picture(row), settings.data.depth_size) for row in rows]
        )
        depths = model(crops.to(device))[:, 0].float().cpu().tolist()
        pictures = [
            write_on(crop, f"{depth:.2f} m ({people.pelvis(row)[2]:.2f})")
            for crop, depth, row in zip(crops, depths, rows, strict=True)
        ]
        return {"depths": torch.cat(pictures, dim=2)}
