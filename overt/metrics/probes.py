"""Probes: small classifiers trained on frozen features, which were computed once.

n samples, N tokens, D numbers each. Everything drawn comes from the settings' seed, and neither
autocast nor inference mode around a call changes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overt.errors import DataError
from overt.ops.attention.api import attention


@dataclass(frozen=True)
class ProbeSettings:
    """How a probe is trained; the rate falls to 0 along a cosine."""

    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.1
    weight_decay: float = 0.0
    epochs: int = 100
    batch_size: int = 256
    # features with mean 0 and deviation 1 over the training set, number by number
    standardize: bool = False
    seed: int = 0


LINEAR = ProbeSettings()
ATTENTIVE = ProbeSettings(optimizer="adamw", lr=1e-3, weight_decay=0.01, epochs=20)


class LinearProbe(nn.Module):
    """One linear layer on pooled features (n, D)."""

    def __init__(self, width: int, classes: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.head = nn.Linear(width, classes)
        nn.init.normal_(self.head.weight, std=0.01, generator=generator)
        nn.init.zeros_(self.head.bias)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(features)
        return logits


class AttentiveProbe(nn.Module):
    """One learned query that attends to all tokens (n, N, D), then one linear layer.

    A block of cross attention and MLP as in V-JEPA (arXiv:2404.08471).
    """

    def __init__(
        self, width: int, classes: int, heads: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        if width % heads:
            raise DataError(
                f"an attentive probe with {heads} heads for features of {width} numbers; the "
                "number of heads must divide the width"
            )
        self.heads = heads
        self.query = nn.Parameter(torch.empty(1, 1, width))
        self.norm_tokens = nn.LayerNorm(width)
        self.key_value = nn.Linear(width, 2 * width)
        self.attended = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norm_head = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        nn.init.trunc_normal_(self.query, std=0.02, generator=generator)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02, generator=generator)
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, _, width = tokens.shape
        both = self.key_value(self.norm_tokens(tokens))  # (n, N, 2 D)
        key, value = both.unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (n, h, N, d)
        query = self.query.view(1, 1, self.heads, -1).transpose(1, 2).expand(batch, -1, -1, -1)
        pooled = attention(query, key, value).reshape(batch, width)
        x = self.query[0] + self.attended(pooled)  # (n, D)
        x = x + self.mlp(self.norm_mlp(x))
        logits: Tensor = self.head(self.norm_head(x))
        return logits


def linear_probe_accuracy(
    train_features: Tensor,  # (n, D)
    train_labels: Tensor,  # (n,)
    test_features: Tensor,  # (m, D)
    test_labels: Tensor,  # (m,)
    settings: ProbeSettings = LINEAR,
) -> dict[str, float]:
    """Share (0 to 1) of the test samples that a linear probe gets right: `top1` and `top5`.

    Every process that calls it does the same work; one may do it for all.
    """

    def build(generator: torch.Generator) -> LinearProbe:
        return LinearProbe(train_features.shape[1], _classes(train_labels), generator)

    train, test = (train_features, train_labels), (test_features, test_labels)
    return _train_and_score(build, train, test, settings)


def attentive_probe_accuracy(
    train_tokens: Tensor,  # (n, N, D)
    train_labels: Tensor,  # (n,)
    test_tokens: Tensor,  # (m, N, D)
    test_labels: Tensor,  # (m,)
    heads: int,
    settings: ProbeSettings = ATTENTIVE,
    device: torch.device | None = None,
) -> dict[str, float]:
    """Share (0 to 1) of the test samples that an attentive probe gets right: `top1` and `top5`.

    It is trained where the tokens are, or on another `device`, to which these come batch by batch:
    all of them are often too many for a GPU that holds a training run as well.
    """

    def build(generator: torch.Generator) -> AttentiveProbe:
        return AttentiveProbe(train_tokens.shape[2], _classes(train_labels), heads, generator)

    train, test = (train_tokens, train_labels), (test_tokens, test_labels)
    return _train_and_score(build, train, test, settings, device)


def _classes(labels: Tensor) -> int:
    if len(labels) == 0 or labels.min() < 0:
        raise DataError(
            "a probe needs labeled images, and these have no classes; put each class into a "
            "separate folder, or skip the probe"
        )
    return int(labels.max()) + 1


def _train_and_score(
    build: Callable[[torch.Generator], nn.Module],
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    settings: ProbeSettings,
    device: torch.device | None = None,
) -> dict[str, float]:
    features, device = train[0], device or train[0].device
    if not (features.isfinite().all() and test[0].isfinite().all()):
        return {"top1": math.nan, "top5": math.nan}
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        generator = torch.Generator().manual_seed(settings.seed)
        mean, scale = (x.to(device) for x in _statistics(features, settings.standardize))
        probe = build(generator).to(device)
        _train(probe, features, train[1].to(device), mean, scale, settings, generator)
        batches = []
        with torch.no_grad():
            for start in range(0, len(test[0]), settings.batch_size):
                chunk, labels = (x[start : start + settings.batch_size].to(device) for x in test)
                logits = probe((chunk.float() - mean) * scale)
                if not logits.isfinite().all():  # diverged, and NaN is never above the truth
                    return {"top1": math.nan, "top5": math.nan}
                batches.append(rank_of_truth(logits, labels))
    ranks = torch.cat(batches)
    return {f"top{k}": int((ranks < k).sum()) / len(ranks) for k in (1, 5)}


def _statistics(features: Tensor, standardize: bool) -> tuple[Tensor, Tensor]:
    """What is taken off and what is multiplied (D,), over samples and tokens."""
    if not standardize:
        return torch.zeros(features.shape[-1]), torch.ones(features.shape[-1])
    flat = features.flatten(0, -2).float()
    return flat.mean(dim=0), flat.std(dim=0).clamp(min=1e-6).reciprocal()


def _train(
    probe: nn.Module,
    features: Tensor,
    labels: Tensor,
    mean: Tensor,
    scale: Tensor,
    settings: ProbeSettings,
    generator: torch.Generator,
) -> None:
    rate, decay = settings.lr, settings.weight_decay
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "sgd":
        optimizer = torch.optim.SGD(probe.parameters(), rate, momentum=0.9, weight_decay=decay)
    else:
        optimizer = torch.optim.AdamW(probe.parameters(), rate, weight_decay=decay)
    steps = settings.epochs * math.ceil(len(features) / settings.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(settings.epochs):
        order = torch.randperm(len(features), generator=generator).to(features.device)
        for chosen in torch.split(order, settings.batch_size):
            logits = probe((features[chosen].to(mean.device).float() - mean) * scale)
            optimizer.zero_grad()
            loss = F.cross_entropy(logits, labels[chosen.to(mean.device)])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()


def rank_of_truth(logits: Tensor, labels: Tensor) -> Tensor:
    """How many classes score above the true one (m,); all, and more, if it was never trained.

    The logits must be finite.
    """
    is_known_class = labels < logits.shape[1]
    truth = logits.gather(1, labels.where(is_known_class, 0)[:, None])
    ranks = (logits > truth).sum(dim=1)
    return ranks.where(is_known_class, torch.iinfo(ranks.dtype).max)
