"""The training losses of LBM, normalized by the global batch.

Letters: B clips, T frames, N points, L layers, K candidates, P cells. Positions are in pixels of
the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from overt.recipes.lbm.backbone import STRIDE

if TYPE_CHECKING:
    from overt.recipes.lbm.config import LossSettings

LIMIT = 2.0 * STRIDE  # pixels: larger errors count as so much, and as wrong


class Prediction(NamedTuple):
    """Estimates in all frames of a clip; positions in pixels of the model."""

    points_xy: Tensor  # (B, T, N, 2)
    visibility: Tensor  # (B, T, N) logits
    rho: Tensor  # (B, T, N) logits
    candidates_xy: tuple[Tensor, ...]  # of each layer, (B, T, N, K, 2)
    candidates_rho: tuple[Tensor, ...]  # of each layer, (B, T, N, K) logits
    entropy: Tensor | None  # (L, B, T, N) of the true cell among all, where that was given


class Targets(NamedTuple):
    """Ground truth, and where it is supervised."""

    tracks_xy: Tensor  # (B, T, N, 2)
    visible: Tensor  # (B, T, N) bool
    supervised: Tensor  # (B, T, N) bool: visibility and uncertainty are learned

    @property
    def located(self) -> Tensor:
        """Return where positions are supervised, (B, T, N) bool."""
        return self.supervised & self.visible


def counts(targets: Targets) -> dict[str, Tensor]:
    """The counts that the losses are divided by; counts of micro-batches add up."""
    return {"supervised": targets.supervised.sum(), "located": targets.located.sum()}


def losses(
    prediction: Prediction, targets: Targets, counts: dict[str, Tensor], settings: LossSettings
) -> dict[str, Tensor]:
    """Return the weighted terms: sums over this batch divided by counts over the global batch."""
    assert prediction.entropy is not None, "the true cells were not given"
    # A batch without supervision has zero loss; a division would give NaN.
    located, supervised = counts["located"].clamp(min=1), counts["supervised"].clamp(min=1)
    # Squared: the published loss applies the weight twice, which has no effect for a weight of 1.
    uncertain = settings.uncertainty_weight**2
    candidates = settings.uncertainty_weight * settings.candidates_weight
    return {
        "classification": settings.classification_weight
        * classification(prediction.entropy, targets)
        / located,
        "visibility": settings.visibility_weight
        * visibility(prediction.visibility, targets)
        / supervised,
        "regression": settings.regression_weight
        * regression(prediction.points_xy, targets)
        / located,
        "uncertainty": uncertain
        * uncertainty(prediction.points_xy, prediction.rho, targets)
        / supervised,
        "uncertainty_topk": candidates
        * uncertainty_of_candidates(
            prediction.candidates_xy[:-1], prediction.candidates_rho[:-1], targets
        )
        / supervised,
    }


def pooled_losses(
    prediction: Prediction, targets: Targets, clips: Tensor, settings: LossSettings
) -> dict[str, Tensor]:
    """Return the weighted terms of groups of clips, each divided by the counts of that group.

    `clips` is the number of clips of the global batch: the loss is the mean over groups.
    """
    assert settings.clips_per_mean is not None
    batch = len(targets.tracks_xy)
    terms: list[dict[str, Tensor]] = []
    for first in range(0, batch, settings.clips_per_mean):
        group = slice(first, min(first + settings.clips_per_mean, batch))
        group_targets = Targets(*(part[group] for part in targets))
        parts = losses(_clips(prediction, group), group_targets, counts(group_targets), settings)
        weight = (group.stop - group.start) / clips
        terms.append({name: term * weight for name, term in parts.items()})
    return {
        name: torch.stack([losses_of_group[name] for losses_of_group in terms]).sum()
        for name in terms[0]
    }


def _clips(prediction: Prediction, group: slice) -> Prediction:
    """Return the estimates of some clips of a batch."""
    entropy = prediction.entropy
    return Prediction(
        prediction.points_xy[group],
        prediction.visibility[group],
        prediction.rho[group],
        tuple(part[group] for part in prediction.candidates_xy),
        tuple(part[group] for part in prediction.candidates_rho),
        None if entropy is None else entropy[:, group],
    )


def true_cells(tracks_xy: Tensor, input_size: tuple[int, int]) -> Tensor:
    """Return the cell index (...) of each position (..., 2); 0 outside the image."""
    height, width = input_size
    x, y = tracks_xy.unbind(-1)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    column, row = (x / STRIDE).floor().long(), (y / STRIDE).floor().long()
    return torch.where(inside, row * (width // STRIDE) + column, 0)


def cell_entropy(correlation: Tensor, cells: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy (...) of correlations (..., P) and true cells (...)."""
    logits = correlation.float().flatten(0, -2) / temperature
    entropy = F.cross_entropy(logits, cells.flatten(), reduction="none")
    return entropy.view(cells.shape)


def classification(entropy: Tensor, targets: Targets) -> Tensor:
    """Sum the entropies (L, B, T, N) where positions are supervised, averaged over layers."""
    return (entropy * targets.located).sum() / len(entropy)


def visibility(logits: Tensor, targets: Targets) -> Tensor:
    """Sum the binary cross-entropies of visibility."""
    truth = targets.visible.float()
    error = F.binary_cross_entropy_with_logits(logits.float(), truth, reduction="none")
    return (error * targets.supervised).sum()


def regression(points_xy: Tensor, targets: Targets) -> Tensor:
    """Sum the absolute errors |x| + |y|; an error beyond the limit has no gradient."""
    error = (points_xy - targets.tracks_xy).abs().sum(-1) * targets.located
    return error.clamp(0, LIMIT).sum()


def uncertainty(points_xy: Tensor, logits: Tensor, targets: Targets) -> Tensor:
    """Sum the binary cross-entropies of "wrong by more than the limit, or invisible"."""
    distance = (points_xy.detach() - targets.tracks_xy).norm(dim=-1)
    wrong = ((distance > LIMIT) | ~targets.visible).float()
    error = F.binary_cross_entropy_with_logits(logits.float(), wrong, reduction="none")
    return (error * targets.supervised).sum()


def uncertainty_of_candidates(
    candidates_xy: tuple[Tensor, ...], logits: tuple[Tensor, ...], targets: Targets
) -> Tensor:
    """Sum the same for every candidate of all layers but the last, averaged over candidates."""
    positions_xy = torch.cat(candidates_xy, dim=3)  # (B, T, N, sum of K, 2)
    answers = torch.cat(logits, dim=3)
    targets_per_candidate = Targets(*(part.unsqueeze(3) for part in targets))
    return uncertainty(positions_xy, answers, targets_per_candidate) / answers.shape[3]
