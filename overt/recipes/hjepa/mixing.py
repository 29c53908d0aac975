"""Loss terms that mix samples, exact for the global batch however it is split.

Ranks mix by differentiable sums (loss.py). Micro-batches of one step cannot: the first is freed
when the second is computed. So the features of all are computed once without gradient, the term is
differentiated with respect to them, and each micro-batch then uses its part of that gradient.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from overt.recipes.hjepa import loss as jepa_loss
from overt.recipes.hjepa.config import LossSettings

if TYPE_CHECKING:
    from overt.recipes.hjepa.model import HJEPA

NOT_REPLAYED = (
    "with several processes a contrastive loss asks on the host how many samples each of them has; "
    "start one process"
)

Features = tuple[Tensor, ...]  # (n, D) each: rows, or two views of each sample


@dataclass(frozen=True)
class Pull:
    """The gradient of the term of the whole global batch for one micro-batch."""

    gradients: Features  # of the term by this micro-batch's features
    term: Tensor  # () the value of all micro-batches and processes
    shown: dict[str, Tensor]

    def on(self, features: Features, fraction: Tensor) -> Tensor:
        """Return a scalar with this fraction of the term's value and its full gradient."""
        along = torch.stack(
            [
                (part.float() * gradient).sum()
                for part, gradient in zip(features, self.gradients, strict=True)
            ]
        ).sum()
        return self.term * fraction + along - along.detach()


def mixed(
    features: Features, settings: LossSettings, step: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted term of the features of all ranks, and its logged values."""
    match settings.extra:
        case "vicreg":
            variance, covariance = jepa_loss.spread(features[0], settings.vicreg_eps)
            shown = {"vicreg_variance": variance, "vicreg_covariance": covariance}
            term = settings.vicreg_weight * (
                settings.vicreg_variance_weight * variance
                + settings.vicreg_covariance_weight * covariance
            )
        case "sigreg":
            rows = features[0]
            slices = jepa_loss.random_slices(
                settings.sigreg_num_slices, rows.shape[1], step, rows.device
            )
            by_points = settings.sigreg_test == "reference_points"
            test = jepa_loss.sigreg_by_points if by_points else jepa_loss.sigreg
            distance = test(rows, slices, settings.sigreg_standardize)
            shown = {"sigreg_distance": distance}
            term = settings.sigreg_weight * distance
        case _:
            first, second = features
            terms = jepa_loss.contrastive(first, second, settings.contrastive_temperature)
            term = settings.contrastive_weight * terms.pop("loss")
            shown = {f"contrastive_{name}": value for name, value in terms.items()}
    return term, {name: value.detach() for name, value in shown.items()}


def pull_together(trainer: Any, micro_batches: list[Any], settings: LossSettings) -> list[Any]:
    """Return the micro-batches, each with its gradient if there are several; padding is excluded.

    Every rank has equally many micro-batches, so all of them reach the same collectives.
    """
    marked = [
        dataclasses.replace(
            micro, batch=dataclasses.replace(micro.batch, is_padding=micro.is_padding)
        )
        for micro in micro_batches
    ]
    if len(marked) == 1:
        return marked
    gathered = _features_of_all(trainer, marked)
    lengths = [len(features[0]) for features in gathered]
    # (n, D) of all micro-batches of this process
    together = tuple(torch.cat(parts).requires_grad_() for parts in zip(*gathered, strict=True))
    with torch.enable_grad(), torch.autocast(trainer.device.type, enabled=False):
        term, shown = mixed(together, settings, trainer.state.step)
        # Every rank has the same term with the same weight, so that in total it counts once.
        gradients = torch.autograd.grad(term / trainer.world.world_size, together)
    parts = zip(*(torch.split(gradient, lengths) for gradient in gradients), strict=True)
    return [
        dataclasses.replace(
            micro,
            batch=dataclasses.replace(micro.batch, pull=Pull(part, term.detach(), shown)),
        )
        for micro, part in zip(marked, parts, strict=True)
    ]


@torch.no_grad()
def _features_of_all(trainer: Any, micro_batches: list[Any]) -> list[Features]:
    """Return the features to be mixed, of each micro-batch of this rank, in float32."""
    model: HJEPA = trainer.model
    device, dtype = trainer.device, trainer.dtype
    gathered = []
    # The real pass repeats the same stochastic depth: generators are restored.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for micro in micro_batches:
            batch = trainer.to_device(micro.batch)
            with torch.autocast(device.type, dtype, enabled=dtype is not None):
                outputs = trainer.wrapping.call(model.see, batch.images, batch.layout, batch.second)
                context, summaries = outputs
            chosen = choose(context, summaries, batch.is_padding)
            gathered.append(tuple(rows.float() for rows in chosen))
    return gathered


def choose(context: Tensor, summaries: tuple[Tensor, Tensor] | None, is_padding: bool) -> Features:
    """Return what is mixed: two views if there are any, else the rows of visible patches."""
    features: Features = (context.flatten(0, -2),) if summaries is None else summaries
    return tuple(part[:0] for part in features) if is_padding else features
