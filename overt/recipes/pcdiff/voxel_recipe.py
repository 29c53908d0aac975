"""PCDiff's second stage as a recipe: from points to the volume of an implant."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from overt.data.skulls.lists import Cloud
from overt.data.skulls.prepare import load_case
from overt.distributed import World
from overt.evaluation import NamedRow, Row, score_batches, summarize, with_names
from overt.geometry.indicator import ScanGrid, implant_of_field
from overt.geometry.voxels import Mask
from overt.metrics.implants import implant_scores
from overt.recipe import Recipe, StepOutput
from overt.recipes.pcdiff.data import HeldOutCase, HeldOutCases, make_missing_data
from overt.recipes.pcdiff.voxel_config import VoxelSettings
from overt.recipes.pcdiff.voxel_data import (
    TrainingVoxels,
    VoxelBatch,
    VoxelSample,
    bone_at_nodes,
    collate_voxels,
    example_voxels,
    unit_map,
    unit_of,
)
from overt.recipes.pcdiff.voxel_network import DoubleConv, ResidualBlock, VoxelNetwork


class VoxelRecipe(Recipe):
    """Predicts an indicator field of the whole skull from points of skull and implant."""

    def __init__(self, settings: VoxelSettings) -> None:
        self.settings = settings

    def build_model(self) -> VoxelNetwork:
        model = self.settings.model
        return VoxelNetwork(
            width=model.width,
            grid=model.grid,
            levels=model.levels,
            offsets=model.offsets,
            side=model.side,
            sigma=model.sigma,
        )

    def build_dataset(self) -> TrainingVoxels:
        make_missing_data(self.settings.data)
        return TrainingVoxels(self.settings.data, self.settings.model.side)

    def collate(self, samples: list[VoxelSample]) -> VoxelBatch:
        return collate_voxels(samples)

    def example_batch(self, size: int) -> VoxelBatch:
        """Double shells like a skull's."""
        data, side = self.settings.data, self.settings.model.side
        return self.collate([example_voxels(data, side, index) for index in range(size)])

    def blocks(self, model: VoxelNetwork) -> list[nn.Module]:
        kinds = (DoubleConv, ResidualBlock)
        return [part for part in model.modules() if isinstance(part, kinds)]

    def loss(
        self, model: nn.Module, batch: VoxelBatch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        field: Tensor = model(batch.points)
        with torch.autocast(field.device.type, enabled=False):
            target = torch.where(batch.bone, -0.5, 0.5)
            errors = (field.float().tanh() - target.tanh()).square().mean(dim=(1, 2, 3))  # (B,)
            wrong = ((field <= 0) != batch.bone).float().mean(dim=(1, 2, 3))
        return StepOutput(
            {"field": errors.sum() / counts["samples"]},
            {"wrong_voxels": wrong.sum() / counts["samples"]},
        )

    def check_evaluation_data(self) -> None:
        HeldOutCases(self.settings.data, self.settings.evaluation)

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        """Return scores of implants computed from the true points of held-out skulls."""
        return summarize(self.evaluate_rows(model, world))

    def evaluate_rows(self, model: nn.Module, world: World) -> list[NamedRow]:
        """The same for each skull."""
        settings = self.settings.evaluation
        cases = HeldOutCases(self.settings.data, settings)

        def score(indices: range) -> list[Row]:
            batch = [cases.case(index) for index in indices]
            return self.score_cases(cast(VoxelNetwork, model), batch)

        rows = score_batches(world, len(cases), settings.batch_size, score)
        return with_names([item.name for item in cases.items], rows)

    def score_cases(self, model: VoxelNetwork, batch: list[HeldOutCase]) -> list[Row]:
        """Score the volumes that the network makes of true points."""
        clouds = [torch.cat([torch.from_numpy(case.cloud.points), case.implant]) for case in batch]
        fields = self.fields(model, torch.stack(clouds))
        return [self.score_case(*each) for each in zip(batch, fields, strict=True)]

    def score_case(self, case: HeldOutCase, field: Any) -> Row:
        """Score a field, next to stage one's solid of the same points, and to the true field."""
        settings = self.settings.evaluation
        volumes = load_case(case.item, self.settings.data.dataset)
        grid = ScanGrid(volumes.skull, volumes.spacing, volumes.to_indices)
        bone = bone_at_nodes(
            volumes.skull | volumes.implant, volumes.to_indices, case.cloud, len(field)
        )
        exact = np.where(bone, -0.5, 0.5).astype(np.float32)
        points = case.to_cloud(case.implant)

        def score(mask: Mask) -> Row:
            return implant_scores(
                mask, volumes.implant, volumes.skull, volumes.spacing, settings.border_mm
            )

        solid = volumes.solid(points[None], settings.solid_mm)
        volume, ceiling = (
            implant_of_field(values, points, unit_map(case.cloud), grid)
            for values in (field, exact)
        )
        row: Row = {"val_loss": float(np.square(field - exact).mean())} | score(volume)
        for name, scores in (("solid", score(solid)), ("ceiling", score(ceiling))):
            row |= {f"{name}_{key}": scores[key] for key in ("dsc", "bdsc", "hd95")}
        return row

    @torch.no_grad()
    def fields(self, model: VoxelNetwork, clouds: Tensor) -> Any:
        """Return the fields (B, R, R, R) of normalized clouds (B, P, 3), as an array."""
        device = next(model.parameters()).device
        # One at a time: a field of 512 nodes per side takes several GiB.
        parts = [model(unit_of(cloud[None].to(device)))[0].float().cpu() for cloud in clouds]
        return torch.stack(parts).numpy()

    def implant_volumes(
        self, model: nn.Module, known: Cloud, implants: Tensor, grid: ScanGrid
    ) -> list[Mask]:
        """Return a volume for each sampled implant (n, K, 3), for `overt complete --voxels`."""
        skull = torch.from_numpy(known.points)
        clouds = torch.stack([torch.cat([skull, implant]) for implant in implants])
        fields = self.fields(cast(VoxelNetwork, model), clouds)
        points = implants.numpy() * known.scale + known.shift
        return [
            implant_of_field(field, cloud, unit_map(known), grid)
            for field, cloud in zip(fields, points, strict=True)
        ]
