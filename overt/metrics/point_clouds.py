"""How near two clouds of points are to each other."""

from __future__ import annotations

import torch
from torch import Tensor

from overt.evaluation import Row


def cloud_distances(predicted: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """From each point of clouds (N, 3) and (M, 3) to the nearest point of the other."""
    # Without matrix products: these lose the digits of small distances.
    between = torch.cdist(
        predicted.double(), truth.double(), compute_mode="donot_use_mm_for_euclid_dist"
    )
    return between.amin(1), between.amin(0)


def cloud_scores(predicted: Tensor, truth: Tensor, threshold: float) -> Row:
    """Chamfer distance, the mean of both ways, and F-score: points within the threshold."""
    ours, theirs = cloud_distances(predicted, truth)
    precision, recall = (float((part < threshold).double().mean()) for part in (ours, theirs))
    total = precision + recall
    return {
        "chamfer": float(ours.mean() + theirs.mean()) / 2,
        "f_score": 2 * precision * recall / total if total else 0.0,
    }
