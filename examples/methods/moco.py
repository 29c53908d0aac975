"""Momentum contrast (He et al., 2020) on digits: a queue of keys from past batches.

Shapes: B samples, K keys in the queue, D features.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from omegaconf import MISSING
from torch import Tensor, nn

from methods.digits import SIDE, convolutions, digits, knn_scores, moved
from overt import Recipe, StepOutput, World
from overt.nn.ema import update_ema


@dataclass
class ModelSettings:
    # channels of the first layer
    width: int = MISSING
    # of a query or key
    features: int = MISSING
    # of the encoder of the keys
    momentum: float = MISSING


@dataclass
class LossSettings:
    temperature: float = MISSING
    # keys of past batches
    queue: int = MISSING


@dataclass
class Settings:
    model: ModelSettings = MISSING
    loss: LossSettings = MISSING


class Pairs:
    """Two views of a digit."""

    def __len__(self) -> int:
        return len(digits("train")[0])

    def sample(self, index: int, rng: np.random.Generator) -> Tensor:
        image = digits("train")[0][index]
        return torch.stack([moved(image, rng), moved(image, rng)])  # (2, 1, H, W)


def encoder(size: ModelSettings) -> nn.Sequential:
    hidden = [nn.Flatten(), nn.Linear(16 * size.width, 4 * size.width), nn.ReLU()]
    return nn.Sequential(
        *convolutions(size.width), *hidden, nn.Linear(4 * size.width, size.features)
    )


class Model(nn.Module):
    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.query, self.key = encoder(settings), encoder(settings).requires_grad_(False)
        self.key.load_state_dict(self.query.state_dict())

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            keys = F.normalize(self.key(views[:, 1]), dim=1)
        return F.normalize(self.query(views[:, 0]), dim=1), keys  # (B, D) each


class MoCo(Recipe):
    gathers_carry = True  # the queue is the same on every rank

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        start = torch.randn(
            settings.loss.queue, settings.model.features, generator=torch.Generator().manual_seed(0)
        )
        self.queue = F.normalize(start, dim=1)  # (K, D)

    def build_model(self) -> Model:
        return Model(self.settings.model)

    def build_dataset(self) -> Pairs:
        return Pairs()

    def collate(self, samples: list[Tensor]) -> Tensor:
        return torch.stack(samples)  # (B, 2, 1, H, W)

    def example_batch(self, size: int) -> Tensor:
        return torch.zeros(size, 2, 1, SIDE, SIDE)

    def loss(self, model: Any, batch: Tensor, counts: dict[str, Tensor], step: int) -> StepOutput:
        queries, keys = model(batch)
        negatives = queries @ self.queue.to(queries).T  # (B, K)
        scores = torch.cat([(queries * keys).sum(1, keepdim=True), negatives], 1)
        labels = torch.zeros(len(batch), dtype=torch.int64, device=scores.device)
        loss = F.cross_entropy(scores / self.settings.loss.temperature, labels, reduction="sum")
        # `loss` is pure: the keys travel to `after_step`, which alone moves the queue.
        return StepOutput({"contrast": loss / counts["samples"]}, carry={"keys": keys})

    def after_step(self, model: Model, step: int, applied: Tensor, carry: dict[str, Any]) -> None:
        update_ema(model.key, model.query, self.settings.model.momentum, applied)
        newest = torch.cat([carry["keys"].to(self.queue), self.queue])[: len(self.queue)]
        self.queue = torch.where(applied.cpu() > 0, newest, self.queue)  # not of a skipped step

    def state_dict(self) -> dict[str, Any]:
        return {"queue": self.queue}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.queue = state["queue"]

    def blocks(self, model: Model) -> list[nn.Module]:
        return [model.query]

    def evaluate(self, model: Model, world: World) -> dict[str, float]:
        # Before the head.
        return knn_scores(model.query[:-3], lambda: encoder(self.settings.model)[:-3])
