"""Scores of sampled implants: distances between clouds, overlap of volumes, held-out loss."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from overt.data.skulls.prepare import load_case
from overt.evaluation import Row
from overt.geometry.solid import solid_of_votes
from overt.metrics.implants import implant_scores
from overt.metrics.point_clouds import cloud_scores
from overt.recipes.pcdiff.config import EvaluationSettings
from overt.recipes.pcdiff.data import HeldOutCase, HeldOutCases
from overt.recipes.pcdiff.denoiser import Denoiser, join_points
from overt.recipes.pcdiff.diffusion import Arrays, add_noise, squared_error
from overt.recipes.pcdiff.sampling import Plan, sample_implants


def score_batch(
    model: Denoiser,
    cases: HeldOutCases,
    indices: range,
    settings: EvaluationSettings,
    plan: Plan,
    arrays: Arrays,
) -> list[Row]:
    """Score some cases whose implants are sampled in one batch."""
    device = next(model.parameters()).device
    batch = [cases.case(index) for index in indices]
    count = cases.data.num_implant_points
    known = torch.stack([torch.from_numpy(case.cloud.points) for case in batch]).to(device)
    implants = sample_batch(
        model, known, count, settings, plan, [cases.numbers[i] for i in indices]
    )
    noise = torch.stack([cases.noise(index, plan.shared_noise) for index in indices])
    rows = [
        score_case(case, sampled, start, settings, cases.data.dataset)
        for case, sampled, start in zip(batch, implants, noise, strict=True)
    ]
    if settings.loss_times:
        truth = torch.stack([case.implant for case in batch])
        losses = held_out_losses(
            model, known, truth.to(device), noise.to(device), arrays, settings.loss_times
        )
        for row, loss in zip(rows, losses.tolist(), strict=True):
            row["val_loss"] = loss
    return rows


def sample_batch(
    model: Denoiser,
    known: Tensor,  # (B, S, 3)
    count: int,
    settings: EvaluationSettings,
    plan: Plan,
    numbers: list[int],
) -> Tensor:
    """Sample `settings.ensemble` implants for each cloud, on the CPU: (B, n, K, 3).

    The noise of an implant depends only on the seed, the index of its skull and its own index.
    """
    device, samples = known.device, settings.ensemble
    generators = []
    for number in numbers:
        for member in range(samples):
            words = np.random.SeedSequence(settings.seed, spawn_key=(2, number, member))
            seed = int(words.generate_state(1, np.uint64)[0] >> np.uint64(1))
            generators.append(torch.Generator(device).manual_seed(seed))
    implants = sample_implants(
        model, known.repeat_interleave(samples, 0), count, plan, generators, settings.cuda_graph
    )
    return torch.unflatten(implants, 0, (-1, samples)).float().cpu()


def score_case(
    case: HeldOutCase, implants: Tensor, noise: Tensor, settings: EvaluationSettings, dataset: str
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
        row |= volume_scores(case, implants, settings, dataset)
    return row


def volume_scores(
    case: HeldOutCase, implants: Tensor, settings: EvaluationSettings, dataset: str
) -> Row:
    """Score the vote of an ensemble (n, K, 3) as a volume in the case's grid.

    `ceiling_dsc` and `ceiling_hd95` are the scores of the true points, an upper bound for samples.
    """
    skull, truth, spacing, to_indices = load_case(case.item, dataset)

    def scores(clouds: Tensor) -> Row:
        indices = to_indices(case.to_cloud(clouds))
        solid = solid_of_votes(indices, skull, spacing, settings.solid_mm)
        return implant_scores(solid, truth, skull, spacing, settings.border_mm)

    ceiling = scores(case.implant[None])
    return scores(implants) | {f"ceiling_{key}": ceiling[key] for key in ("dsc", "hd95")}


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
