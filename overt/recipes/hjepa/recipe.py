"""H-JEPA as a recipe: what the engine needs to train and score it, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt.data.images.folder import ReadableImages
from overt.data.images.transforms import Normalize
from overt.distributed import World
from overt.nn.ema import update_ema
from overt.nn.vit import VisionTransformer
from overt.recipe import Recipe, StepOutput
from overt.recipes.hjepa import evaluation, mixing
from overt.recipes.hjepa import loss as jepa_loss
from overt.recipes.hjepa.collapse import CollapseMonitor
from overt.recipes.hjepa.config import Settings
from overt.recipes.hjepa.data import (
    Batch,
    Collate,
    HeldOutImages,
    MaskedImages,
    make_missing_data,
    open_sets,
    patch_grid,
)
from overt.recipes.hjepa.example import example_samples
from overt.recipes.hjepa.levels import valid_counts
from overt.recipes.hjepa.model import HJEPA, Output
from overt.recipes.hjepa.predictor import Predictor, ReferencePredictor
from overt.schedule import EMAScheduler
from overt.viz.features import pca_picture

IMAGES_DRAWN = 4


class HJEPARecipe(Recipe):
    """H-JEPA, and with other values I-JEPA."""

    model_class: type[HJEPA] = HJEPA  # a recipe of your own may build another
    unscored = ("predictor.",)  # features are an encoder's

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.grid = patch_grid(settings)
        self._collate = Collate(settings)
        self.replayable: bool | str = True  # whatever the masks, the work is the same
        if not settings.data.masking.fixed_shapes:
            self.replayable = (
                "with data.masking.fixed_shapes=false every batch has its own number of tokens; "
                "leave the key out, so that it follows training.cuda_graph"
            )
        self.monitor: CollapseMonitor | None = None  # made with the model, which holds it
        self.momentum: EMAScheduler | None = None

    def begin(self, total_steps: int, steps_per_epoch: int) -> None:
        """Learn how long training will be: the momentum's schedule follows."""
        ema = self.settings.model.ema
        self.momentum = EMAScheduler(
            ema.momentum,
            ema.momentum_end,
            total_steps / steps_per_epoch,
            steps_per_epoch,
            ema.momentum_warmup_epochs,
            stretch=ema.stretch,
        )

    def build_model(self) -> HJEPA:
        model, data = self.settings.model, self.settings.data
        sizes, fan_in = model.sizes(), model.initialization == "fan_in"
        height, width = data.image_size
        encoder = VisionTransformer(
            (height, width),
            model.patch(),
            sizes.width,
            sizes.depth,
            sizes.heads,
            mlp_ratio=sizes.mlp_ratio,
            class_token=model.class_token,
            positions=model.positions,
            rope_theta=model.rope.theta if model.rope.use_rope else None,
            layer_scale=model.layerscale.init_value if model.layerscale.use_layerscale else None,
            drop_path_rate=model.drop_path_rate,
        )
        encoder.initialize(fan_in)
        chosen = model.predictor
        predictor: Predictor | ReferencePredictor
        if chosen.kind == "reference":
            predictor = ReferencePredictor(
                sizes.width, chosen.depth, chosen.num_heads, chosen.mlp_ratio, fan_in
            )
        else:
            predictor = Predictor(
                self.grid,
                sizes.width,
                chosen.width or sizes.width,
                chosen.depth,
                chosen.num_heads,
                chosen.mlp_ratio,
                fan_in=fan_in,
            )
        self.monitor = CollapseMonitor(self.settings.evaluation.collapse, model.num_hierarchies)
        return self.model_class(
            encoder,
            predictor,
            num_hierarchies=model.num_hierarchies,
            pooling=model.pooling,
            projection=model.projection,
            projection_norm=model.projection_norm,
            normalize_targets=model.normalize_targets,
            fpn_feature_dim=(model.fpn.feature_dim or sizes.width) if model.fpn.use_fpn else None,
            fpn_fusion_method=model.fpn.fusion_method,
            use_target_encoder=model.use_target_encoder,
            fan_in=fan_in,
            pixels=Normalize(data.mean, data.std),
            monitor=self.monitor,
        )

    @cached_property
    def sets(self) -> tuple[ReadableImages, ReadableImages]:
        """The images to train on and to evaluate on; opened once, as listing them takes long.

        They also remember which of them this process could not read.
        """
        return open_sets(self.settings.data)

    def build_dataset(self) -> MaskedImages:
        make_missing_data(self.settings.data)
        return MaskedImages(self.sets[0], self.settings)

    def collate(self, samples: Any) -> Batch:
        return self._collate(samples)

    def example_batch(self, size: int) -> Batch:
        """Images of noise, with masks as large as training draws them."""
        return self.collate(example_samples(self.settings, size))

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        return {"tokens": valid_counts(batch.layout.pooling, self.settings.model.num_hierarchies)}

    def parameter_groups(self, model: HJEPA) -> list[dict[str, Any]]:
        return parameter_groups(model, self.settings.model.no_decay)

    def blocks(self, model: HJEPA) -> list[nn.Module]:
        encoders = [model.context_encoder, model.target_encoder]
        return [
            *(block for encoder in encoders if encoder is not None for block in encoder.vit.blocks),
            *model.predictor.blocks_in_order,
        ]

    def compile_units(self, model: HJEPA) -> list[nn.Module]:
        encoders = [model.context_encoder, model.target_encoder]
        vits = [encoder.vit for encoder in encoders if encoder is not None]
        return [chain for part in (*vits, model.predictor) for chain in part.chains]

    def loss(
        self, model: nn.Module, batch: Batch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        output: Output = model(batch.images, batch.layout, batch.second)
        settings = self.settings.loss
        # The losses are float32 whatever the model computes in.
        with torch.autocast(batch.images.device.type, enabled=False):
            levels = self.level_losses(output, counts["tokens"])
            losses = {
                f"weighted_h{level}": loss * weight
                for level, (loss, weight) in enumerate(
                    zip(levels, settings.hierarchy_weights, strict=True)
                )
            }
            metrics = {f"loss_h{level}": loss.detach() for level, loss in enumerate(levels)}
            metrics["loss_unweighted"] = torch.stack(levels).detach().mean()
            share = len(batch.images) / counts["samples"]
            extra, more = self.extra_losses(output, batch, share, step)
            assert self.monitor is not None, "build_model() makes it"
            metrics |= more | self.monitor.look(output, step, share)
        return StepOutput(losses | extra, metrics)

    def level_losses(self, output: Output, counts: Tensor) -> list[Tensor]:
        """The distance of each level, this micro-batch's share."""
        settings = self.settings.loss
        targets = output.targets
        if settings.detach_targets:
            targets = [target.detach() for target in targets]
        return jepa_loss.level_losses(
            output.predictions,
            targets,
            output.valid,
            counts,
            settings.distance,
            settings.huber_delta,
            settings.normalize_embeddings,
        )

    def extra_losses(
        self, output: Output, batch: Batch, share: Tensor, step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The weighted term that mixes samples, if any, and what is shown besides.

        It is that of the whole global batch, of which this micro-batch owns a share.
        """
        extra = self.settings.loss.extra
        if extra is None:
            return {}, {}
        features = mixing.choose(output.context, output.summaries, batch.is_padding)
        if batch.pull is None:
            term, shown = mixing.mixed(features, self.settings.loss, step)
            term = term * share
        else:
            term, shown = batch.pull.on(features, share), batch.pull.shown
        return {extra: term}, {name: value * share for name, value in shown.items()}

    def custom_step(
        self, trainer: Any, micro_batches: list[Any], counts: dict[str, Tensor]
    ) -> tuple[list[StepOutput], Tensor, Tensor]:
        """The engine's own step; a term that mixes samples sees all micro-batches before it."""
        if self.settings.loss.extra is not None:
            micro_batches = mixing.pull_together(trainer, micro_batches, self.settings.loss)
        return trainer.add_gradients(micro_batches, counts), *trainer.update()

    def replays_at(self, step: int) -> bool:
        """Not where the monitor looks: it shows numbers to the host."""
        every = self.settings.evaluation.collapse.every_steps
        return every is None or step % every != 0

    def after_step(
        self, model: HJEPA, step: int, applied: Tensor, carry: dict[str, Tensor]
    ) -> None:
        """Move the target encoder; where the update was skipped it stays."""
        if model.target_encoder is not None:
            assert self.momentum is not None, "begin() says how long training is"
            update_ema(model.target_encoder, model.context_encoder, self.momentum(step), applied)

    # --- evaluation ------------------------------------------------------------------------------

    def check_evaluation_data(self) -> None:
        make_missing_data(self.settings.data)
        assert self.sets  # opens both

    def evaluate(self, model: HJEPA, world: World) -> dict[str, float]:
        """k-NN (and probes) on frozen features, loss on held-out images, and their spread."""
        make_missing_data(self.settings.data)
        training, held_out = (HeldOutImages(images, self.settings) for images in self.sets)
        if len(held_out) == 0:
            return {}
        scores = evaluation.held_out_loss(
            model, held_out, self.settings, world, self.collate, self.level_losses
        )
        scores |= evaluation.spread_of_features(
            model, held_out, self.settings.evaluation, world.device
        )
        return scores | evaluation.score_features(model, training, held_out, self.settings, world)

    def visualize(self, model: HJEPA) -> dict[str, Tensor]:
        """Held-out images, what the encoder sees, what is predicted, and features as colours."""
        images = HeldOutImages(self.sets[1], self.settings)
        device = next(model.parameters()).device
        drawn = map(images.try_sample, evaluation.images_used(images, IMAGES_DRAWN).tolist())
        samples = [sample for sample in drawn if sample is not None]
        if not samples:
            return {}
        pixels = torch.stack([sample.image for sample in samples])  # (B, 3, H, W)
        patch = self.settings.model.patch()
        features = model.extract_features(pixels.to(device)).float()
        columns = [
            pixels,
            torch.stack([self.only(one.image, one.contexts[0], patch) for one in samples]),
            torch.stack(
                [self.only(one.image, np.concatenate(one.targets), patch) for one in samples]
            ),
            pca_picture(features, self.grid, patch),
        ]
        rows = torch.cat(columns, dim=3)  # (B, 3, H, 4 W)
        return {"masks_and_features": torch.cat(list(rows), dim=1)}

    def only(self, image: Tensor, places: np.ndarray, patch: int) -> Tensor:
        """The image with all patches but these in grey, (3, H, W) uint8."""
        shown = torch.zeros(self.grid, dtype=torch.bool)
        shown.view(-1)[torch.from_numpy(places)] = True
        shown = shown.repeat_interleave(patch, 0).repeat_interleave(patch, 1)
        return torch.where(shown, image, 128)


def parameter_groups(model: HJEPA, no_decay: Sequence[str]) -> list[dict[str, Any]]:
    """Groups by level, with and without weight decay.

    Level 0 is everything but the layers of the levels above. Biases, norms and other vectors do
    not decay, nor do parameters whose last name is listed.
    """
    groups: dict[tuple[int, bool], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            first, *rest = name.split(".")
            level = int(rest[0]) if first == "hierarchy_projections" or "fpn_" in first else 0
            decays = parameter.ndim >= 2 and name.rpartition(".")[2] not in no_decay
            groups.setdefault((level, decays), []).append((name, parameter))
    return [
        {"params": pairs, "level": level} | ({} if decays else {"weight_decay": 0.0})
        for (level, decays), pairs in sorted(groups.items(), key=lambda item: item[0])
    ]
