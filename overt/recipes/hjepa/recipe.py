"""H-JEPA as a recipe: what the engine needs to train and score it, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt.data.image_transforms import Normalize
from overt.distributed import World, get_world_size, sum_over_processes
from overt.metrics.collapse import reference_metrics
from overt.metrics.features import Features, gather_features, knn_accuracy
from overt.metrics.probes import ProbeSettings, linear_probe_accuracy
from overt.nn.ema import update_ema
from overt.nn.vit import VisionTransformer
from overt.recipe import StepOutput
from overt.recipes.hjepa import loss as jepa_loss
from overt.recipes.hjepa.collapse import CollapseMonitor
from overt.recipes.hjepa.config import Settings
from overt.recipes.hjepa.data import (
    Batch,
    HeldOutImages,
    MaskedImages,
    Sample,
    collate,
    make_missing_data,
    open_sets,
    patch_grid,
)
from overt.recipes.hjepa.levels import to_device, valid_counts
from overt.recipes.hjepa.model import HJEPA, Output
from overt.recipes.hjepa.predictor import Predictor, ReferencePredictor
from overt.schedule import EMAScheduler
from overt.viz.features import pca_picture

IMAGES_DRAWN = 4


class HJEPARecipe:
    """H-JEPA, and with other values I-JEPA."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.grid = patch_grid(settings)
        self.monitor = CollapseMonitor(settings.evaluation.collapse)
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
        return HJEPA(
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
        )

    def build_dataset(self) -> MaskedImages:
        make_missing_data(self.settings.data)
        return MaskedImages(open_sets(self.settings.data)[0], self.settings)

    def collate(self, samples: list[Sample]) -> Batch:
        return collate(samples, self.grid, self.settings.model)

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
            extra, more = self.extra_losses(output, batch, counts, step)
            looks = self.monitor.look(output, step)
            metrics |= more | {name: value * share for name, value in looks.items()}
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
        self, output: Output, batch: Batch, counts: dict[str, Tensor], step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The weighted term that mixes samples, if any, and what is shown besides.

        It is that of all processes' micro-batches together, so each process owns a part of it.
        """
        settings = self.settings.loss
        if settings.extra is None:
            return {}, {}
        together = sum_over_processes(torch.full_like(counts["samples"], len(batch.images)))
        share = together / counts["samples"] / get_world_size()
        rows = output.context.flatten(0, -2)
        match settings.extra:
            case "vicreg":
                variance, covariance = jepa_loss.spread(rows, settings.vicreg_eps)
                shown = {"vicreg_variance": variance, "vicreg_covariance": covariance}
                term = settings.vicreg_weight * (
                    settings.vicreg_variance_weight * variance
                    + settings.vicreg_covariance_weight * covariance
                )
            case "sigreg":
                slices = jepa_loss.random_slices(
                    settings.sigreg_num_slices, rows.shape[1], step, rows.device
                )
                distance = jepa_loss.sigreg(rows, slices)
                shown = {"sigreg_distance": distance}
                term = settings.sigreg_weight * distance
            case _:
                assert output.summaries is not None
                found = jepa_loss.contrastive(*output.summaries, settings.contrastive_temperature)
                term = settings.contrastive_weight * found.pop("loss")
                shown = {f"contrastive_{name}": value for name, value in found.items()}
        metrics = {name: value.detach() * share for name, value in shown.items()}
        return {settings.extra: term * share}, metrics

    def after_step(self, model: HJEPA, step: int, applied: Tensor) -> None:
        """Move the target encoder; where the update was skipped it stays."""
        if model.target_encoder is not None:
            assert self.momentum is not None, "begin() says how long training is"
            update_ema(model.target_encoder, model.context_encoder, self.momentum(step), applied)

    # --- evaluation ------------------------------------------------------------------------------

    def evaluate(self, model: HJEPA, world: World) -> dict[str, float]:
        """k-NN (and linear probe) on frozen features, loss on held-out images, and their spread."""
        evaluation = self.settings.evaluation
        make_missing_data(self.settings.data)
        sets = [HeldOutImages(images, self.settings) for images in open_sets(self.settings.data)]
        training, held_out = sets
        if len(held_out) == 0:
            return {}
        scores = self.held_out_loss(model, held_out, world)
        scores |= self.spread(model, held_out)
        if training.images.classes and held_out.images.classes:
            bank, test = (self.features(model, images, world) for images in sets)
            pairs = (bank.values, bank.labels, test.values, test.labels)
            neighbours = min(evaluation.k, len(bank.values))
            scores["knn_top1"] = knn_accuracy(
                *pairs, k=neighbours, temperature=evaluation.temperature, world=world
            )
            probe = evaluation.linear_probe
            if probe.enabled:
                chosen = ProbeSettings(
                    lr=probe.lr, epochs=probe.epochs, batch_size=probe.batch_size
                )
                found = linear_probe_accuracy(*pairs, settings=chosen)
                scores |= {f"linear_{name}": value for name, value in found.items()}
        return scores

    def features(self, model: HJEPA, images: HeldOutImages, world: World) -> Features:
        """Mean features (n, D) of the target encoder, of all processes' images."""
        device = next(model.parameters()).device

        def compute(indices: range) -> Features:
            pixels, labels = zip(*(images.read(index) for index in indices), strict=True)
            tokens = model.extract_features(torch.stack(pixels).to(device))
            return Features(
                torch.tensor(list(indices)), tokens.float().mean(1).cpu(), torch.tensor(labels)
            )

        return gather_features(
            world, self.count(images), self.settings.evaluation.batch_size, compute
        )

    def count(self, images: HeldOutImages) -> int:
        """Images of a set that are used."""
        return min(len(images), self.settings.evaluation.max_samples or len(images))

    def held_out_loss(self, model: HJEPA, images: HeldOutImages, world: World) -> dict[str, float]:
        """The loss with masks that are the same every time; each image once."""
        device = next(model.parameters()).device
        size, levels = self.settings.evaluation.batch_size, self.settings.model.num_hierarchies
        sums = torch.zeros(2, levels, dtype=torch.float64, device=device)
        ones = torch.ones(levels, device=device)
        for start in range(world.rank * size, self.count(images), world.world_size * size):
            chosen = range(start, min(start + size, self.count(images)))
            batch = self.collate([images.sample(index) for index in chosen])
            layout = to_device(batch.layout, device)
            output = model(batch.images.to(device), layout)
            sums[0] += torch.stack(self.level_losses(output, ones)).double()
            sums[1] += valid_counts(layout.pooling, levels)
        totals, counts = sum_over_processes(sums).tolist()
        means = [total / max(count, 1) for total, count in zip(totals, counts, strict=True)]
        weights = self.settings.loss.hierarchy_weights
        weighted = sum(mean * weight for mean, weight in zip(means, weights, strict=True))
        return {"val_loss": weighted} | {f"val_loss_h{n}": mean for n, mean in enumerate(means)}

    def spread(self, model: HJEPA, images: HeldOutImages) -> dict[str, float]:
        """The reference's collapse metrics, on the first held-out images in full."""
        device = next(model.parameters()).device
        count = min(self.count(images), self.settings.evaluation.batch_size)
        pixels = torch.stack([images.read(index)[0] for index in range(count)]).to(device)
        context, target = (model.extract_features(pixels, 0, use) for use in (False, True))
        return reference_metrics(context, target)

    def visualize(self, model: HJEPA) -> dict[str, Tensor]:
        """Held-out images, what the encoder sees, what is predicted, and features as colours."""
        images = HeldOutImages(open_sets(self.settings.data)[1], self.settings)
        if len(images) == 0:
            return {}
        device = next(model.parameters()).device
        samples = [images.sample(index) for index in range(min(IMAGES_DRAWN, len(images)))]
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
