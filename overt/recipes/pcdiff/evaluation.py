"""Scores of sampled implants: distances between clouds, overlap of volumes, held-out loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from overt.data.rng import sample_rng
from overt.data.skulls.lists import Cloud, draw_points, known_cloud
from overt.data.skulls.prepare import load_case
from overt.data.skulls.volumes import Spacing
from overt.errors import DataError
from overt.evaluation import Row
from overt.metrics.implants import implant_scores
from overt.metrics.point_clouds import cloud_scores
from overt.recipes.pcdiff.close_up import FEWEST_POINTS, Cube, sampled_cube
from overt.recipes.pcdiff.config import EvaluationSettings, Settings
from overt.recipes.pcdiff.data import HeldOutCase, HeldOutCases, Skull
from overt.recipes.pcdiff.denoiser import Denoiser, join_points
from overt.recipes.pcdiff.diffusion import Arrays, add_noise, squared_error
from overt.recipes.pcdiff.sampling import make_plan, sample_implants


def score_batch(
    model: Denoiser,
    cases: HeldOutCases,
    indices: range,
    settings: Settings,
    arrays: Arrays,
    cloud_spacing: Spacing | None = None,
) -> list[Row]:
    """Score some cases whose implants are sampled in one batch.

    `cloud_spacing` is mm of the voxels that training clouds were made in; None: unknown.
    """
    evaluation = settings.evaluation
    batch = [cases.case(index) for index in indices]
    implants = complete_skulls(model, batch, settings)
    shared = settings.model.diffusion.shared_noise
    noise = torch.stack([cases.noise(index, shared) for index in indices])
    rows = [
        score_case(case, sampled, start, evaluation, cases.data.dataset, cloud_spacing)
        for case, sampled, start in zip(batch, implants, noise, strict=True)
    ]
    if evaluation.loss_times:
        device = next(model.parameters()).device
        known = stacked([case.cloud for case in batch])
        truth = torch.stack([case.implant for case in batch])
        clouds = (known.to(device), truth.to(device), noise.to(device))
        losses = held_out_losses(model, *clouds, arrays, evaluation.loss_times)
        for row, loss in zip(rows, losses.tolist(), strict=True):
            row["val_loss"] = loss
    return rows


def stacked(clouds: list[Cloud]) -> Tensor:
    """Return the points of clouds as one batch (B, S, 3)."""
    return torch.stack([torch.from_numpy(cloud.points) for cloud in clouds])


def complete_skulls(model: Denoiser, skulls: Sequence[Skull], settings: Settings) -> Tensor:
    """Sample `evaluation.ensemble` implants for each skull: (B, n, K, 3) on the CPU, normalized.

    The noise of an implant depends only on the seed, the number of its skull and its own index.
    """
    clouds, numbers = [skull.cloud for skull in skulls], [skull.number for skull in skulls]
    implants = sample_batch(model, clouds, numbers, settings)
    close_ups = settings.data.close_ups
    if not settings.evaluation.close_up or close_ups is None:
        return implants
    near = [
        close_up_cloud(skull, sampled_cube(skull.to_cloud(sampled), close_ups), settings)
        for skull, sampled in zip(skulls, implants, strict=True)
    ]
    implants = sample_batch(model, near, numbers, settings, is_close_up=True)
    return torch.stack(
        [
            moved(sampled, source, target)
            for sampled, source, target in zip(implants, near, clouds, strict=True)
        ]
    )


def close_up_cloud(skull: Skull, cube: Cube, settings: Settings) -> Cloud:
    """Return the bone in a cube; the whole skull if there is none."""
    bone = cube.inside(skull.points)
    if len(bone) < FEWEST_POINTS:
        return skull.cloud
    rng = sample_rng(settings.evaluation.seed, 3, skull.number)
    return known_cloud(draw_points(bone, settings.data.num_known_points, rng, "a close-up"))


def moved(points: Tensor, source: Cloud, target: Cloud) -> Tensor:
    """Return points (..., 3), normalized as one cloud, in the coordinates of another."""
    coordinates = points.numpy() * source.scale + source.shift
    return torch.from_numpy(((coordinates - target.shift) / target.scale).astype(np.float32))


def sample_batch(
    model: Denoiser,
    clouds: list[Cloud],
    numbers: list[int],
    settings: Settings,
    is_close_up: bool = False,
) -> Tensor:
    """Sample `evaluation.ensemble` implants for each cloud, on the CPU: (B, n, K, 3)."""
    evaluation, device = settings.evaluation, next(model.parameters()).device
    samples = evaluation.ensemble
    generators = []
    for number in numbers:
        for member in range(samples):
            key = (4 if is_close_up else 2, number, member)
            words = np.random.SeedSequence(evaluation.seed, spawn_key=key)
            seed = int(words.generate_state(1, np.uint64)[0] >> np.uint64(1))
            generators.append(torch.Generator(device).manual_seed(seed))
    implants = sample_implants(
        model,
        stacked(clouds).to(device).repeat_interleave(samples, 0),
        settings.data.num_implant_points,
        make_plan(settings.model.diffusion, evaluation),
        generators,
        evaluation.cuda_graph,
    )
    return torch.unflatten(implants, 0, (-1, samples)).float().cpu()


def score_case(
    case: HeldOutCase,
    implants: Tensor,
    noise: Tensor,
    settings: EvaluationSettings,
    dataset: str,
    cloud_spacing: Spacing | None = None,
) -> Row:
    """Return mean distances of an ensemble (n, K, 3) and of noise; overlap of its vote."""
    unit = case.unit_mm
    threshold = settings.found_mm / unit
    sample_scores = [cloud_scores(implant, case.implant, threshold) for implant in implants]
    row = {
        "chamfer_mm": float(np.mean([scores["chamfer"] for scores in sample_scores])) * unit,
        "f_score": float(np.mean([scores["f_score"] for scores in sample_scores])),
        "noise_chamfer_mm": cloud_scores(noise, case.implant, threshold)["chamfer"] * unit,
    }
    if settings.volumes:
        row |= volume_scores(case, implants, settings, dataset, cloud_spacing)
    return row


def volume_scores(
    case: HeldOutCase,
    implants: Tensor,
    settings: EvaluationSettings,
    dataset: str,
    cloud_spacing: Spacing | None = None,
) -> Row:
    """Score the vote of an ensemble (n, K, 3) as a volume in the case's grid.

    `ceiling_dsc` and `ceiling_hd95` are the scores of the true points, an upper bound for samples.
    Sampled points lie as far outside the bone as those of training, of voxels of `cloud_spacing`;
    true ones as those of the case's own voxels.
    """
    refuse_non_finite(implants)
    volumes = load_case(case.item, dataset)
    skull, truth, spacing, *_ = volumes

    def scores(clouds: Tensor, made_in: Spacing | None) -> Row:
        solid = volumes.solid(case.to_cloud(clouds), settings.solid_mm, made_in)
        return implant_scores(solid, truth, skull, spacing, settings.border_mm)

    ceiling = scores(case.implant[None], None)
    sampled = scores(implants, cloud_spacing)
    return sampled | {f"ceiling_{key}": ceiling[key] for key in ("dsc", "hd95")}


def refuse_non_finite(implants: Tensor) -> None:
    """Raise an error for implants that no volume can be made of."""
    count = int((~implants.isfinite().all(dim=-1)).sum())
    if count:
        raise DataError(
            f"{count} of {implants[..., 0].numel()} sampled points are non-finite (NaN or Inf): "
            "the weights are damaged, or training diverged; use an earlier checkpoint, "
            "or more evaluation.steps"
        )


def held_out_losses(
    model: Denoiser,
    known: Tensor,  # (B, S, 3)
    implants: Tensor,  # (B, K, 3)
    noise: Tensor,  # (B, K, 3)
    arrays: Arrays,
    count: int,
) -> Tensor:
    """Return the noise error (B,) of each cloud at `count` evenly spaced steps."""
    steps = len(arrays.betas)
    total = torch.zeros(len(known), device=known.device)
    for index in range(count):
        time = (2 * index + 1) * steps // (2 * count)
        times = torch.full((len(known),), time, device=known.device)
        noisy = add_noise(arrays, implants, times, noise)
        cloud = join_points(known.transpose(1, 2), noisy.transpose(1, 2), model.extra_channels > 0)
        predicted = model(cloud, times)[:, :, known.shape[1] :].transpose(1, 2)
        total += squared_error(noise, predicted)
    return total / count
