"""Linear probes of many learning rates and weight decays, trained in one pass over the features.

n samples, D numbers each, C classes, H heads. Features are standardized over the training set. The
head to score is chosen on a tenth of the training samples that no head has seen: the test samples
choose nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from overt.errors import DataError
from overt.metrics.probes import LINEAR, ProbeSettings

RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
DECAYS = (0.0, 1e-4, 1e-3, 1e-2)
MOMENTUM = 0.9
PIECE = 4096  # samples scored at a time
HELD_OUT = 10  # one of this many samples chooses among the heads


def linear_sweep_accuracy(
    train_features: Tensor,  # (n, D)
    train_labels: Tensor,  # (n,)
    test_features: Tensor,  # (m, D)
    test_labels: Tensor,  # (m,)
    settings: ProbeSettings = LINEAR,
    rates: Sequence[float] = RATES,
    decays: Sequence[float] = DECAYS,
    views: int = 1,
) -> dict[str, float]:
    """Return `top1` (0 to 1) of the chosen head on the test samples, its `lr` and `weight_decay`.

    `views`: see `fit_linear`. Features with NaN or Inf score NaN. Every process that calls it does
    the same work.
    """
    refuse_unlabeled(train_labels)
    if not (train_features.isfinite().all() and test_features.isfinite().all()):
        return {"top1": math.nan, "lr": math.nan, "weight_decay": math.nan}
    head = fit_linear(train_features, train_labels, settings, rates, decays, views)
    truth = test_labels.to(head.weight.device)
    top1 = int((head.predict(test_features) == truth).sum()) / len(truth)
    return {"top1": top1, "lr": head.lr, "weight_decay": head.weight_decay}


@dataclass(frozen=True)
class LinearHead:
    """A linear layer on features that are standardized over the samples it learned from."""

    mean: Tensor  # (D,)
    scale: Tensor  # (D,)
    weight: Tensor  # (1, D, C)
    bias: Tensor  # (1, 1, C)
    lr: float
    weight_decay: float

    def predict(self, features: Tensor) -> Tensor:
        """Return the classes (m,) of features (m, D), on the device of the head."""
        device = self.weight.device
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            pieces = [
                _logits((piece.to(device).float() - self.mean) * self.scale, self.weight, self.bias)
                for piece in torch.split(features, PIECE)
            ]
            return torch.cat([logits[0].argmax(1) for logits in pieces])


def fit_linear(
    features: Tensor,  # (n, D)
    labels: Tensor,  # (n,)
    settings: ProbeSettings = LINEAR,
    rates: Sequence[float] = RATES,
    decays: Sequence[float] = DECAYS,
    views: int = 1,
) -> LinearHead:
    """Return the best of the heads by the samples that no head has seen, on the features' device.

    With several `views` the rows are those of one view of all samples, then of the next. The first
    view of a sample judges the heads, which then see no other of it. Features with NaN or Inf are
    refused by the caller.
    """
    refuse_unlabeled(labels)
    device = features.device
    pairs = [(rate, decay) for rate in rates for decay in decays]
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        generator = torch.Generator().manual_seed(settings.seed)
        mean = features.float().mean(0)
        scale = features.float().std(0).clamp(min=1e-6).reciprocal()
        standard, truth = (features.float() - mean) * scale, labels.to(device)
        samples = len(features) // views
        order = torch.randperm(samples, generator=generator).to(device)
        judges = order[:: min(HELD_OUT, len(order))]
        learns = torch.ones(samples, dtype=torch.bool, device=device)
        learns[judges] = False
        learns = learns.repeat(views)
        weight, bias = _train(standard[learns], truth[learns], pairs, settings, generator)
        best = int(_correct(standard[judges], truth[judges], weight, bias).argmax())
    rate, decay = pairs[best]
    return LinearHead(mean, scale, weight[best][None], bias[best][None], rate, decay)


def refuse_unlabeled(labels: Tensor) -> None:
    """Refuse samples without classes, from which no probe learns."""
    if len(labels) < 2 or labels.min() < 0:
        raise DataError(
            "a probe needs labeled images, and these have no classes; put each class into a "
            "separate folder, or skip the probe"
        )


def _train(
    features: Tensor,
    labels: Tensor,
    pairs: Sequence[tuple[float, float]],
    settings: ProbeSettings,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Return weights (H, D, C) and biases (H, 1, C), by SGD with momentum along a cosine."""
    device, heads, classes = features.device, len(pairs), int(labels.max()) + 1
    peak, decay = (
        torch.tensor(column, device=device).view(-1, 1, 1) for column in zip(*pairs, strict=True)
    )
    weight = torch.zeros(heads, features.shape[1], classes, device=device)
    bias = torch.zeros(heads, 1, classes, device=device)
    speed, bias_speed = torch.zeros_like(weight), torch.zeros_like(bias)
    truth = torch.nn.functional.one_hot(labels, classes).float()
    batches = math.ceil(len(features) / settings.batch_size)
    steps, step = settings.epochs * batches, 0
    for _ in range(settings.epochs):
        order = torch.randperm(len(features), generator=generator).to(device)
        for chosen in order.chunk(batches):
            rate = peak * (0.5 * (1 + math.cos(math.pi * step / steps)))
            batch = features[chosen]  # (b, D)
            # The gradient of the mean cross entropy, for all heads at once.
            error = _logits(batch, weight, bias).softmax(2).sub_(truth[chosen]).div_(len(chosen))
            speed.mul_(MOMENTUM).add_(batch.T @ error).add_(decay * weight)
            bias_speed.mul_(MOMENTUM).add_(error.sum(1, keepdim=True))
            weight.sub_(rate * speed)
            bias.sub_(rate * bias_speed)
            step += 1
    return weight, bias


def _correct(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return how many samples each head gets right, (H,)."""
    right = torch.zeros(len(weight), dtype=torch.int64, device=features.device)
    pieces = zip(torch.split(features, PIECE), torch.split(labels, PIECE), strict=True)
    for piece, truth in pieces:
        right += (_logits(piece, weight, bias).argmax(2) == truth).sum(1)
    return right


def _logits(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the scores (H, n, C) of standardized features (n, D)."""
    return features @ weight + bias
