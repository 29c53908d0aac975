"""Segmentation by frozen patch features: k-NN or a linear layer names the class of each patch.

A patch has the class of most of its pixels. Predictions are compared pixel by pixel with the mask,
by the mean intersection over union (mIoU) of the classes. B images, N patches, D numbers, C
classes: 0 to 254, while 255 is ignored.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from overt.metrics.features import vote
from overt.metrics.probe_sweep import LinearHead
from overt.ops.exact import exact_products

IGNORED = 255


def patch_classes(masks: Tensor, size: int) -> Tensor:
    """Return the class of most labeled pixels of each patch, (B, N), of masks (B, H, W)."""
    batch, height, width = masks.shape
    patches = masks.view(batch, height // size, size, width // size, size)
    pixels = patches.transpose(2, 3).reshape(batch, -1, size * size)  # (B, N, p p)
    counts = torch.zeros(*pixels.shape[:2], IGNORED + 1, dtype=torch.int32, device=masks.device)
    counts.scatter_add_(2, pixels, torch.ones_like(pixels, dtype=torch.int32))
    labeled = counts[..., :IGNORED]
    return labeled.argmax(2).where(labeled.sum(2) > 0, IGNORED)


def spread_patches(classes: Tensor, grid: tuple[int, int], size: int) -> Tensor:
    """Return the classes of patches (B, N) as masks (B, H, W)."""
    maps = classes.view(len(classes), *grid)
    return maps.repeat_interleave(size, 1).repeat_interleave(size, 2)


class KNearest:
    """Names the class of a patch by its nearest neighbors in a bank, weighted by similarity."""

    def __init__(self, features: Tensor, labels: Tensor, k: int, temperature: float) -> None:
        self.bank, self.labels = F.normalize(features.float(), dim=1), labels  # (n, D), (n,)
        self.k, self.temperature = min(k, len(labels)), temperature

    def predict(self, queries: Tensor) -> Tensor:
        """Return classes (m,) of features (m, D)."""
        predicted = []
        with exact_products(queries.device):
            for piece in torch.split(F.normalize(queries.float(), dim=1), 1024):
                cosine, nearest = (piece @ self.bank.T).topk(self.k, dim=1)
                votes = ((cosine - 1) / self.temperature).exp()
                predicted.append(vote(self.labels[nearest], votes))
        return torch.cat(predicted)


class Majority:
    """Names the most frequent class, whatever a patch looks like: what any score has to beat."""

    def __init__(self, labels: Tensor) -> None:
        self.label = labels.bincount().argmax()

    def predict(self, queries: Tensor) -> Tensor:
        """Return classes (m,) of features (m, D)."""
        return self.label.expand(len(queries))


Labeler = KNearest | LinearHead | Majority


def confusion(predicted: Tensor, truth: Tensor) -> Tensor:
    """Return how often each class (row) was predicted as each class (column), (255, 255)."""
    counted = truth != IGNORED
    cells = truth[counted] * IGNORED + predicted[counted]
    return cells.bincount(minlength=IGNORED**2).view(IGNORED, IGNORED)


def mean_iou(counts: Tensor) -> float:
    """Return the mean intersection over union of the classes that occur or were predicted."""
    counts = counts.cpu()
    right = counts.diagonal().double()
    union = counts.sum(0) + counts.sum(1) - counts.diagonal()
    occurs = union > 0
    return float((right[occurs] / union[occurs]).mean()) if occurs.any() else math.nan
