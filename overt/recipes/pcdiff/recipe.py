"""PCDiff as a recipe: what the engine needs to train and score it, and nothing else."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from overt.data.rng import sample_rng
from overt.data.skulls.lists import Cloud, Points, draw_points, known_cloud
from overt.data.skulls.volumes import Spacing
from overt.distributed import World
from overt.evaluation import NamedRow, Row, score_batches, summarize, with_names
from overt.recipe import Recipe, StepOutput
from overt.recipes.pcdiff.config import ConvolutionSettings, ModelSettings, Settings
from overt.recipes.pcdiff.data import (
    CloudBatch,
    CloudSample,
    HeldOutCases,
    Skull,
    TrainingClouds,
    collate,
    example_sample,
    make_missing_data,
    training_spacing,
)
from overt.recipes.pcdiff.denoiser import Convolutions, Denoiser, Down, Up, join_points, make_plans
from overt.recipes.pcdiff.diffusion import (
    Arrays,
    add_noise,
    min_snr_weight,
    posterior_divergence,
    squared_error,
)
from overt.recipes.pcdiff.evaluation import complete_skulls, refuse_non_finite, score_batch
from overt.recipes.pcdiff.geometry import find_geometry
from overt.recipes.pcdiff.layers import FeaturePropagation, PVConv, SetAbstraction
from overt.recipes.pcdiff.sampling import base_arrays
from overt.viz.points import Shown, draw_clouds

logger = logging.getLogger(__name__)

CASES_DRAWN = 2


class Completion(NamedTuple):
    """Implants for one skull, in its normalized coordinates; on the CPU."""

    known: Cloud  # (S, 3)
    implants: Tensor  # (n, K, 3)
    cloud_spacing: Spacing | None = None  # mm of the voxels that training clouds were made in


class PCDiffRecipe(Recipe):
    """Point-cloud diffusion that completes a defective skull with an implant."""

    compile_pays = "not measured; a recording alone takes a third of the time"
    prepares_beside_step = True  # neighbors are searched while the last clouds are trained on
    prepares_replayably = True  # hundreds of kernels

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.down, self.up = levels(settings.model)
        self.plans = make_plans(self.down, self.up, settings.model.resolution_multiplier)
        self.replayable: bool | str = True
        if any(plan.pairs_per_center is None for plan in self.plans):
            # With preallocated room for neighbors, the host never synchronizes.
            self.replayable = (
                "a level of the model has pairs_per_center=null, so that the host waits for the "
                "number of its neighbors; give every level a number"
            )
        self.arrays: dict[torch.device, Arrays] = {}
        # mm of the voxels that training clouds were made in, along the axes of the data set:
        # sampled points lie half a voxel of these outside the bone, whatever they are used for.
        voxel_mm = settings.data.voxel_mm
        self.cloud_spacing: Spacing | None = None if voxel_mm is None else (voxel_mm,) * 3

    def arrays_on(self, device: torch.device) -> Arrays:
        if device not in self.arrays:
            self.arrays[device] = base_arrays(self.settings.model.diffusion).to(device)
        return self.arrays[device]

    def build_model(self) -> Denoiser:
        model = self.settings.model
        return Denoiser(
            self.down,
            self.up,
            embed_dim=model.embed_dim,
            attention=model.attention,
            dropout=model.dropout,
            extra_channels=int(model.marked_points),
            width_multiplier=model.width_multiplier,
            resolution_multiplier=model.resolution_multiplier,
        )

    def build_dataset(self) -> TrainingClouds:
        make_missing_data(self.settings.data)
        clouds = TrainingClouds(self.settings.data, self.settings.model.diffusion)
        self.cloud_spacing = training_spacing(self.settings.data, clouds.items)
        return clouds

    def state_dict(self) -> dict[str, Any]:
        """Return what `overt evaluate` and `overt complete` need to know of the training data."""
        return {} if self.cloud_spacing is None else {"cloud_spacing": list(self.cloud_spacing)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.recall_training(state)

    def recall_training(self, state: Mapping[str, Any]) -> None:
        """Take the voxels of the training clouds from a checkpoint; older ones lack them."""
        sizes = state.get("cloud_spacing")
        if isinstance(sizes, list) and len(sizes) == 3 and all(map(_is_size, sizes)):
            x, y, z = map(float, sizes)
            self.cloud_spacing = x, y, z

    def collate(self, samples: list[CloudSample]) -> CloudBatch:
        return collate(samples)

    def example_batch(self, size: int) -> CloudBatch:
        """Return double shells like a skull's, with a cap as the implant."""
        data, diffusion = self.settings.data, self.settings.model.diffusion
        return self.collate([example_sample(data, diffusion, index) for index in range(size)])

    def blocks(self, model: Denoiser) -> list[nn.Module]:
        kinds = (PVConv, SetAbstraction, FeaturePropagation)
        inner: list[nn.Module] = [part for part in model.modules() if isinstance(part, kinds)]
        return inner if model.global_att is None else [*inner, model.global_att]

    def on_device(self, batch: CloudBatch) -> CloudBatch:
        """Add the geometry, which depends on no weight."""
        arrays = self.arrays_on(batch.known.device)
        noisy = add_noise(arrays, batch.implant, batch.times, batch.noise)
        points = torch.cat([batch.known, noisy], dim=1)  # (B, N, 3)
        return dataclasses.replace(batch, geometry=find_geometry(points, self.plans))

    def loss(
        self, model: nn.Module, batch: CloudBatch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        settings, arrays = self.settings, self.arrays_on(batch.known.device)
        noise, start = batch.noise.transpose(1, 2), batch.implant.transpose(1, 2)  # (B, 3, K)
        noisy = add_noise(arrays, start, batch.times, noise)
        # (B, 3 or 4, N)
        cloud = join_points(batch.known.transpose(1, 2), noisy, settings.model.marked_points)
        geometry = batch.geometry or find_geometry(cloud[:, :3].transpose(1, 2), self.plans)
        predicted = model(cloud, batch.times, geometry)[:, :, batch.known.shape[1] :]
        # Losses are float32, whatever the precision of the model.
        with torch.autocast(cloud.device.type, enabled=False):
            errors = squared_error(noise, predicted)  # (B,)
            match settings.loss.type:
                case "mse_minsnr":
                    gamma = settings.loss.min_snr_gamma
                    losses = errors * min_snr_weight(arrays, batch.times, gamma)
                case "kl":
                    kind = settings.model.diffusion.variance
                    losses = posterior_divergence(
                        arrays, start, noisy, batch.times, predicted, kind
                    )
                case _:
                    losses = errors
            fullest = geometry.fullest()
            # Dropped neighbors would be a silent error, so the step is skipped.
            losses = losses + torch.where(fullest > 1, torch.nan, 0.0)
            fraction = len(errors) / counts["samples"]
        return StepOutput(
            {settings.loss.type: losses.sum() / counts["samples"]},
            {
                "noise_error": errors.detach().sum() / counts["samples"],
                "pair_room_used": fullest * fraction,
            },
        )

    def check_evaluation_data(self) -> None:
        HeldOutCases(self.settings.data, self.settings.evaluation)

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        """Return scores of implants sampled for held-out skulls."""
        return summarize(self.evaluate_rows(model, world))

    def evaluate_rows(self, model: nn.Module, world: World) -> list[NamedRow]:
        """The same for each skull."""
        settings = self.settings
        cases = HeldOutCases(settings.data, settings.evaluation)
        arrays = self.arrays_on(next(model.parameters()).device)
        made_in = self.cloud_spacing
        if made_in is None and settings.evaluation.volumes and world.is_main:
            logger.warning(
                "The checkpoint does not record the voxels that its training clouds were made in, "
                "by half of which sampled points lie outside the bone: half a voxel of the scored "
                "data is taken off. Walls are too thick if these are finer, too thin if coarser; "
                "checkpoints of this version record it"
            )

        def score(indices: range) -> list[Row]:
            return score_batch(cast(Denoiser, model), cases, indices, settings, arrays, made_in)

        rows = score_batches(world, len(cases), settings.evaluation.batch_size, score)
        # Distances between surfaces are NaN where a volume is empty; ground truth never is.
        empty = sum(math.isnan(row.get("hd95", 0.0)) for row in rows)
        if empty and world.is_main:
            logger.warning(
                "%d of %d sampled implants are empty: fewer than half of their samples enclose a "
                "solid in the volume. The model may need more training.",
                empty, len(rows),
            )  # fmt: skip
        return with_names([item.name for item in cases.items], rows)

    def visualize(self, model: nn.Module) -> dict[str, Tensor]:
        """Draw the first held-out skulls with sampled and true implants, from several sides."""
        settings = self.settings
        cases = HeldOutCases(settings.data, settings.evaluation)
        batch = [cases.case(index) for index in range(min(CASES_DRAWN, len(cases)))]
        implants = complete_skulls(cast(Denoiser, model), batch, settings)
        rows = []
        for case, sampled in zip(batch, implants, strict=True):
            skull = torch.from_numpy(case.cloud.points)
            rows.append(Shown(f"{case.item.name}: sampled", skull, sampled[0]))
            rows.append(Shown(f"{case.item.name}: true", skull, case.implant))
        return {"implants": draw_clouds(rows)}

    def complete_listed(self, model: nn.Module) -> Iterator[tuple[Path, Points]]:
        """Sample implants for all skulls of the test list, for `overt data implants`."""
        settings = self.settings
        cases = HeldOutCases(settings.data, settings.evaluation)
        size = settings.evaluation.batch_size
        for first in range(0, len(cases), size):
            batch = [cases.case(index) for index in range(first, min(first + size, len(cases)))]
            implants = complete_skulls(cast(Denoiser, model), batch, settings)
            refuse_non_finite(implants)
            for case, sampled in zip(batch, implants, strict=True):
                yield case.item.samples, case.to_cloud(sampled)

    def complete(self, model: nn.Module, skull: Points, where: str) -> Completion:
        """Sample implants for the cloud (points, 3) of a defective skull, for `overt complete`.

        `where` names the cloud in errors.
        """
        settings = self.settings
        rng = sample_rng(settings.evaluation.seed, 0, 0)
        count = settings.data.num_known_points
        cloud = known_cloud(draw_points(skull, count, rng, where))
        implants = complete_skulls(cast(Denoiser, model), [Skull(cloud, skull, 0)], settings)
        refuse_non_finite(implants)
        return Completion(cloud, implants[0], self.cloud_spacing)


def _is_size(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def levels(settings: ModelSettings) -> tuple[list[Down], list[Up]]:
    """The levels of the network, from its settings."""

    def convolutions(block: ConvolutionSettings) -> Convolutions:
        return Convolutions(block.channels, block.count, block.resolution)

    down = [
        Down(
            None if level.convolutions is None else convolutions(level.convolutions),
            level.centers,
            level.radius,
            level.neighbours,
            list(level.widths),
            level.pairs_per_center,
        )
        for level in settings.down
    ]
    up = [Up(list(level.widths), convolutions(level.convolutions)) for level in settings.up]
    return down, up
