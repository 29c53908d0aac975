"""The four training losses of CoTracker3, normalized by the global batch.

Letters: W windows, I iterations, B batch, S frames of a window, N points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from overt.recipes.cotracker3.config import LossSettings
from overt.recipes.cotracker3.model import Estimate


class Targets(NamedTuple):
    """The truth in one window."""

    tracks_xy: Tensor  # (B, S, N, 2) pixels
    visible: Tensor  # (B, S, N) 0 or 1, float
    valid: Tensor  # (B, S, N) 0 or 1, float: is the position supervised?


def counts(windows: Sequence[Targets]) -> dict[str, Tensor]:
    """The counts that the losses are divided by, (W,) each; counts of micro-batches add up.

    They depend on the data only, so they are known before the first forward pass. With
    `loss.per_clip` only the number of clips is needed.
    """
    visible = torch.stack([(window.valid * window.visible).sum() for window in windows])
    valid = torch.stack([window.valid.sum() for window in windows])
    entries = [valid.new_full((), window.valid.numel()) for window in windows]
    return {"visible": visible, "occluded": valid - visible, "entries": torch.stack(entries)}


def losses(
    windows: Sequence[Sequence[Estimate]],  # W windows of I iterations
    targets: Sequence[Targets],
    counts: dict[str, Tensor],
    settings: LossSettings,
) -> dict[str, Tensor]:
    """Return the weighted terms: sums over this batch divided by counts over the global batch."""
    visible = [target.valid * target.visible for target in targets]
    occluded = [target.valid * (1 - target.visible) for target in targets]
    if settings.per_clip:
        clips = counts["clips"]
        visible_counts, occluded_counts = per_clip(visible), per_clip(occluded)
        # All clips of a batch have the same number of entries, so this equals the mean of clip
        # means.
        entries = torch.stack([clips * target.visible[0].numel() for target in targets])
        visible_counts, occluded_counts = (
            [clips * count for count in clip_counts]
            for clip_counts in (visible_counts, occluded_counts)
        )
    else:
        visible_counts, occluded_counts = list(counts["visible"]), list(counts["occluded"])
        entries = counts["entries"]
    flow = position_loss(
        windows,
        targets,
        visible,
        visible_counts,
        settings.gamma,
        settings.huber_delta if settings.huber_visible else None,
    )
    flow_invisible = position_loss(
        windows,
        targets,
        occluded,
        occluded_counts,
        settings.gamma,
        settings.huber_delta if settings.huber_invisible else None,
    )
    visibility = visibility_loss(windows, targets, entries)
    confidence = confidence_loss(windows, targets, entries, settings.confidence_radius)
    return {
        "flow": settings.visible_weight * flow,
        "flow_invisible": settings.invisible_weight * flow_invisible,
        "visibility": settings.visibility_weight * visibility,
        "confidence": settings.confidence_weight * confidence,
    }


def per_clip(masks: Sequence[Tensor]) -> list[Tensor]:
    """Return how many entries of each window each clip has, (B, 1, 1): the divisor of its mean."""
    return [mask.sum((1, 2), keepdim=True) for mask in masks]


def position_error(predicted_xy: Tensor, true_xy: Tensor, huber_delta: float | None) -> Tensor:
    """Return the error along each axis: Huber's, or the absolute error if `huber_delta` is None."""
    if huber_delta is None:
        return (predicted_xy - true_xy).abs()
    return F.huber_loss(
        predicted_xy, true_xy.expand_as(predicted_xy), reduction="none", delta=huber_delta
    )


def position_loss(
    windows: Sequence[Sequence[Estimate]],
    targets: Sequence[Targets],
    masks: Sequence[Tensor],  # (B, S, N) per window
    # of each window: the sum of the masks over the global batch, (), or for each clip what its
    # errors are divided by, (B, 1, 1)
    counts: Sequence[Tensor],
    gamma: float,
    huber_delta: float | None,
) -> Tensor:
    """Return the masked mean position error; later iterations have larger weights."""
    terms = []
    for window, target, mask, count in zip(windows, targets, masks, counts, strict=True):
        predicted = torch.stack([estimate.tracks_xy for estimate in window])  # (I, B, S, N, 2)
        errors = position_error(predicted, target.tracks_xy, huber_delta).mean(-1) * mask
        # The epsilon gives 0 instead of NaN for a window without valid entries.
        errors = errors.sum((2, 3)) / (1e-6 + count.flatten())  # (I, B)
        age = torch.arange(len(window) - 1, -1, -1, device=errors.device)
        terms.append((errors.sum(1) * gamma**age).mean())
    return torch.stack(terms).mean()


def visibility_loss(
    windows: Sequence[Sequence[Estimate]], targets: Sequence[Targets], entries: Tensor
) -> Tensor:
    """Return the cross-entropy of visibility over all entries, valid or not."""
    terms = []
    for window, target, count in zip(windows, targets, entries, strict=True):
        logits = torch.stack([estimate.visibility for estimate in window])  # (I, B, S, N)
        terms.append(
            _cross_entropy(logits, target.visible.expand_as(logits)).sum() / count / len(window)
        )
    return torch.stack(terms).mean()


def confidence_loss(
    windows: Sequence[Sequence[Estimate]],
    targets: Sequence[Targets],
    entries: Tensor,
    radius: float,
) -> Tensor:
    """Return the cross-entropy of "the position is within the radius", summed over visible points.

    It is divided by the number of all entries, not only the visible ones.
    """
    terms = []
    for window, target, count in zip(windows, targets, entries, strict=True):
        predicted = torch.stack([estimate.tracks_xy.detach() for estimate in window])
        logits = torch.stack([estimate.confidence for estimate in window])  # (I, B, S, N)
        close = (predicted - target.tracks_xy).square().sum(-1) <= radius**2
        entropy = _cross_entropy(logits, close.to(logits.dtype)) * target.visible
        terms.append(entropy.sum() / count / len(window))
    return torch.stack(terms).mean()


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    # On logits, because a saturated probability has no gradient to correct its error.
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none")
