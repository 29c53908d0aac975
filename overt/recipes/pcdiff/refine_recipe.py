"""PCDiff's refinement as a recipe: the volume of an implant from its points and the bone around."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from overt.data.rng import sample_rng
from overt.data.skulls.lists import Cloud, Points
from overt.data.skulls.prepare import load_case
from overt.distributed import World
from overt.evaluation import NamedRow, Row, score_batches, summarize, with_names
from overt.geometry.indicator import ScanGrid, implant_of_field
from overt.geometry.voxels import Mask, largest_part
from overt.metrics.implants import implant_scores
from overt.recipe import Recipe, StepOutput
from overt.recipes.pcdiff.data import HeldOutCase, HeldOutCases, make_missing_data
from overt.recipes.pcdiff.refine_config import RefineSettings
from overt.recipes.pcdiff.refine_data import (
    NOWHERE,
    RefineBatch,
    RefineSample,
    TrainingWindows,
    as_many,
    bone_in,
    collate_refine,
    example_window,
    mirror_near,
    misplaced,
    unit_in_mm,
    window_of,
)
from overt.recipes.pcdiff.refine_network import RefinementNetwork
from overt.recipes.pcdiff.voxel_network import DoubleConv


class RefineRecipe(Recipe):
    """Predicts which nodes around sampled points are the implant."""

    replayable = True

    def __init__(self, settings: RefineSettings) -> None:
        self.settings = settings

    def build_model(self) -> RefinementNetwork:
        model = self.settings.model
        return RefinementNetwork(width=model.width, levels=model.levels)

    def build_dataset(self) -> TrainingWindows:
        make_missing_data(self.settings.data)
        return TrainingWindows(self.settings.data, self.settings.model)

    def collate(self, samples: list[RefineSample]) -> RefineBatch:
        return collate_refine(samples)

    def example_batch(self, size: int) -> RefineBatch:
        """Shells with a hole."""
        model, count = self.settings.model, self.settings.data.num_implant_points
        return self.collate([example_window(model, count, index) for index in range(size)])

    def blocks(self, model: RefinementNetwork) -> list[nn.Module]:
        return [part for part in model.modules() if isinstance(part, DoubleConv)]

    def loss(
        self, model: nn.Module, batch: RefineBatch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        logits: Tensor = model(batch.skull, batch.mirrored, batch.points)
        with torch.autocast(logits.device.type, enabled=False):
            logits, target = logits.float().flatten(1), batch.implant.float().flatten(1)
            entropy = functional.binary_cross_entropy_with_logits(
                logits, target, reduction="none"
            ).mean(dim=1)  # (B,)
            # An implant fills few nodes of its cube: overlap does not drown in the others.
            inside = logits.sigmoid()
            overlap = 2 * (inside * target).sum(dim=1) + 1
            dice = overlap / (inside.sum(dim=1) + target.sum(dim=1) + 1)
        total = counts["samples"]
        return StepOutput(
            {"entropy": entropy.sum() / total, "dice": (1 - dice).sum() / total},
            {"soft_dice": dice.detach().sum() / total},
        )

    def check_evaluation_data(self) -> None:
        HeldOutCases(self.settings.data, self.settings.evaluation)

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        """Return scores of implants of held-out skulls, from points misplaced as in training."""
        return summarize(self.evaluate_rows(model, world))

    def evaluate_rows(self, model: nn.Module, world: World) -> list[NamedRow]:
        """The same for each skull."""
        settings = self.settings.evaluation
        cases = HeldOutCases(self.settings.data, settings)

        def score(indices: range) -> list[Row]:
            return [self.score_case(model, cases.case(index)) for index in indices]

        rows = score_batches(world, len(cases), settings.batch_size, score)
        return with_names([item.name for item in cases.items], rows)

    def score_case(self, model: nn.Module, case: HeldOutCase) -> Row:
        """Score a volume made of misplaced points.

        Next to it are stage one's solid of these points, and the volume that the network makes
        without any points in the same window.
        """
        settings = self.settings.evaluation
        volumes = load_case(case.item, self.settings.data.dataset)
        skull, truth, spacing, to_indices, _ = volumes
        grid = ScanGrid(skull, spacing, to_indices)
        rng = sample_rng(settings.seed, 2, case.number)
        unit_mm = unit_in_mm(to_indices, spacing)
        points = misplaced(case.to_cloud(case.implant), self.settings.data.errors, unit_mm, rng)
        known = case.to_cloud(torch.from_numpy(case.cloud.points))
        masks = self.volumes(model, known, points[None], grid)
        masks += self.volumes(model, known, points[None], grid, blind=True)
        masks.append(volumes.solid(points[None], settings.solid_mm))
        refined, blind, solid = (
            implant_scores(mask, truth, skull, spacing, settings.border_mm) for mask in masks
        )
        row: Row = dict(refined)
        for name, scores in (("blind", blind), ("solid", solid)):
            row |= {f"{name}_{key}": scores[key] for key in ("dsc", "bdsc", "hd95")}
        return row

    @torch.no_grad()
    def volumes(
        self,
        model: nn.Module,
        known: Points,  # (S, 3) of the defective skull
        implants: Points,  # (n, K, 3), both in the coordinates of clouds
        grid: ScanGrid,
        blind: bool = False,
    ) -> list[Mask]:
        """Return a volume for each sampled implant; `blind`: only one, without any points."""
        settings, device = self.settings.model, next(model.parameters()).device
        unit_mm = unit_in_mm(grid.to_indices, grid.spacing)
        window = window_of(implants, settings, unit_mm)
        mirror = (
            mirror_near(known, np.concatenate(implants), unit_mm) if settings.mirrored else None
        )
        bone = bone_in(window, grid.skull, grid.to_indices, mirror, settings.side)
        skull, mirrored = map(torch.from_numpy, bone)
        count, rng = self.settings.data.num_implant_points, sample_rng(0, 0, 0)
        shown = np.stack([as_many(implant, count, rng) for implant in implants])
        units = window.to_unit(shown).astype(np.float32)
        masks = []
        for unit in np.full_like(units[:1], NOWHERE) if blind else units:
            parts = (skull, mirrored, torch.from_numpy(unit))
            logits = model(*(part[None].to(device) for part in parts))[0].float().cpu()
            # The surface is between nodes inside and their neighbors.
            reached = functional.max_pool3d(logits[None], 3, stride=1, padding=1)[0] > 0
            nodes = reached.nonzero().numpy() / settings.side  # (nodes, 3)
            volume = np.zeros(grid.skull.shape, dtype=bool)
            if len(nodes):
                where = window.from_unit(nodes)
                volume = implant_of_field(-logits.numpy(), where, window.to_unit, grid)
            masks.append(largest_part(volume))
        return masks

    def implant_volumes(
        self, model: nn.Module, known: Cloud, implants: Tensor, grid: ScanGrid
    ) -> list[Mask]:
        """Return a volume for each sampled implant (n, K, 3), for `overt complete --voxels`."""
        skull, samples = (
            part * known.scale + known.shift for part in (known.points, implants.numpy())
        )
        return self.volumes(model, skull, samples, grid)
