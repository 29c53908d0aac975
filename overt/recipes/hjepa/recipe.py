"""H-JEPA as a recipe: what the engine needs to train and score it, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt.distributed import World, get_world_size
from overt.nn.ema import update_ema
from overt.recipe import SampleSource, StepOutput
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
)
from overt.recipes.hjepa.encoder_recipe import EncoderRecipe
from overt.recipes.hjepa.example import example_samples
from overt.recipes.hjepa.fixed_shapes import with_shapes_settled
from overt.recipes.hjepa.levels import valid_counts
from overt.recipes.hjepa.mixture import with_mixture
from overt.recipes.hjepa.model import HJEPA, Output
from overt.recipes.hjepa.predictor import Predictor, ReferencePredictor
from overt.schedule import EMAScheduler
from overt.viz.features import attention_picture, pca_picture

IMAGES_DRAWN = 4


class HJEPARecipe(EncoderRecipe):
    """H-JEPA, and with other values I-JEPA."""

    model_class: type[HJEPA] = HJEPA  # a recipe of your own may build another
    target_width: int | None = None  # numbers of a target; None: those of the encoder's features
    gathers_carry = True  # every rank's monitor remembers the same

    def __init__(self, settings: Settings) -> None:
        settings = with_shapes_settled(settings)
        super().__init__(settings)
        self.unscored = ("predictor.",)  # features are an encoder's
        if settings.model.projection != "shared":  # else they go through the projections
            self.unscored += ("hierarchy_projections.", "fpn_")
        self._collate = Collate(settings)
        self.replayable: bool | str = True  # whatever the masks, the work is the same
        if not settings.data.masking.fixed_shapes:
            self.replayable = (
                "with data.masking.fixed_shapes=false every batch has its own number of tokens; "
                "remove the key, so that it follows training.cuda_graph"
            )
        elif settings.loss.extra == "contrastive" and get_world_size() > 1:
            self.replayable = mixing.NOT_REPLAYED
        self.monitor: CollapseMonitor | None = None  # made with the model, which holds it
        self.momentum: EMAScheduler | None = None

    def begin(self, total_steps: int, steps_per_epoch: int) -> None:
        """Store the length of training, from which the momentum schedule follows."""
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
        model = self.settings.model
        sizes, fan_in = model.sizes(), model.initialization == "fan_in"
        encoder = self.build_encoder()
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
                target_width=self.target_width,
            )
        collapse = self.settings.evaluation.collapse
        self.monitor = CollapseMonitor(collapse, model.num_hierarchies, sizes.width)
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
            pixels=self.build_pixels(),
            monitor=self.monitor,
        )

    def build_dataset(self) -> SampleSource:
        make_missing_data(self.settings.data)
        data = self.settings.data
        return with_mixture(data, self.sets[0], lambda images: MaskedImages(images, self.settings))

    def collate(self, samples: Any) -> Batch:
        return self._collate(samples)

    def on_device(self, batch: Batch) -> Batch:
        """Compute the views of a batch that has its images as stored."""
        if batch.views is None:
            return batch
        images, *second = self.make_views(batch.images, batch.views)
        return replace(batch, images=images, second=second[0] if second else None, views=None)

    def example_batch(self, size: int) -> Batch:
        """Return images of noise, with masks of the largest size."""
        return self.collate(example_samples(self.settings, size))

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        return {"tokens": valid_counts(batch.layout.pooling, self.settings.model.num_hierarchies)}

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
        # Losses are float32, whatever the precision of the model.
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
            fraction = len(batch.images) / counts["samples"]
            extra, extra_metrics = self.extra_losses(output, batch, fraction, step)
            assert self.monitor is not None, "build_model() makes it"
            look = self.monitor.look(output, step)
            metrics |= extra_metrics | self.monitor.shown(look, fraction)
        # One row per sample, so that micro-batches of ranks are weighted by their samples.
        carry = {} if look is None else {"look": look.expand(len(batch.images), -1, -1)}
        return StepOutput(losses | extra, metrics, carry)

    def level_losses(self, output: Output, counts: Tensor) -> list[Tensor]:
        """Return this micro-batch's contribution to the distance of each level."""
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
        self, output: Output, batch: Batch, fraction: Tensor, step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the weighted term that mixes samples, if any, and its logged values.

        It is that of the whole global batch, of which this micro-batch contributes a fraction.
        """
        extra = self.settings.loss.extra
        if extra is None:
            return {}, {}
        features = mixing.choose(output.context, output.summaries, batch.is_padding)
        if batch.pull is None:
            term, shown = mixing.mixed(features, self.settings.loss, step)
            term = term * fraction
        else:
            term, shown = batch.pull.on(features, fraction), batch.pull.shown
        return {extra: term}, {name: value * fraction for name, value in shown.items()}

    def custom_step(
        self, trainer: Any, micro_batches: list[Any], counts: dict[str, Tensor]
    ) -> tuple[list[StepOutput], Tensor, Tensor]:
        """Run the engine's own step; a term that mixes samples sees all micro-batches before it."""
        if self.settings.loss.extra is not None:
            micro_batches = mixing.pull_together(trainer, micro_batches, self.settings.loss)
        return trainer.add_gradients(micro_batches, counts), *trainer.update()

    def replays_at(self, step: int) -> bool:
        """Return False for steps in which the monitor reads values on the host."""
        every_steps = self.settings.evaluation.collapse.every_steps
        return every_steps is None or step % every_steps != 0

    def after_step(
        self, model: HJEPA, step: int, applied: Tensor, carry: dict[str, Tensor]
    ) -> None:
        """Update the target encoder unless the update was skipped; check for collapse."""
        if model.target_encoder is not None:
            assert self.momentum is not None, "begin() says how long training is"
            update_ema(model.target_encoder, model.context_encoder, self.momentum(step), applied)
        if "look" in carry:
            assert self.monitor is not None, "build_model() makes it"
            self.monitor.remember(carry["look"], step)  # last: it may stop the run

    # --- evaluation ------------------------------------------------------------------------------

    def evaluate(self, model: HJEPA, world: World) -> dict[str, float]:
        """Return k-NN (and probes) on frozen features, held-out loss, and feature spread."""
        _, held_out = self.scored_sets()
        if len(held_out) == 0:
            return {}
        scores = evaluation.held_out_loss(
            model, held_out, self.settings, world, self.collate, self.level_losses
        )
        return scores | super().evaluate(model, world)

    def visualize(self, model: HJEPA) -> dict[str, Tensor]:
        """Draw held-out images, the visible part, the predicted part, and features as colors.

        Next to them, the attention of each head of the last block.
        """
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
            torch.stack([self.only(sample.image, sample.contexts[0], patch) for sample in samples]),
            torch.stack(
                [
                    self.only(sample.image, np.concatenate(sample.targets), patch)
                    for sample in samples
                ]
            ),
            pca_picture(features, self.grid, patch),
        ]
        rows = torch.cat(columns, dim=3)  # (B, 3, H, 4 W)
        vit = model.scored_encoder().vit
        maps = vit.attention_maps(model.pixels(pixels.to(device)))
        attention = torch.cat([pixels, attention_picture(maps, self.grid, patch)], dim=3)
        return {
            "masks_and_features": torch.cat(list(rows), dim=1),
            "attention": torch.cat(list(attention), dim=1),
        }

    def only(self, image: Tensor, patches: np.ndarray, patch: int) -> Tensor:
        """Return the image with all patches but these in gray, (3, H, W) uint8."""
        shown = torch.zeros(self.grid, dtype=torch.bool)
        shown.view(-1)[torch.from_numpy(patches)] = True
        shown = shown.repeat_interleave(patch, 0).repeat_interleave(patch, 1)
        return torch.where(shown, image, 128)
