"""Points of ten classes, told apart by a perceptron."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from shared import HELD_OUT, SAMPLES, Points, make_model, training_loss
from torch import Tensor, nn
from torch.nn import functional as F

from overt.distributed import World
from overt.evaluation import mean_of_rows, score_each
from overt.recipe import Recipe, StepOutput


class Source(Points):
    def sample(self, index: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return self[index]


class Peer(Recipe):
    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def build_model(self) -> nn.Module:
        return make_model()

    def build_dataset(self) -> Source:
        return Source(SAMPLES, seed=1)

    def collate(self, samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
        return tuple(torch.stack(part) for part in zip(*samples, strict=True))

    def loss(
        self, model: nn.Module, batch: Any, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        inputs, labels = batch
        mean = training_loss(model(inputs), labels)
        return StepOutput({"entropy": mean * len(labels) / counts["samples"]})

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        data = Points(HELD_OUT, seed=2)

        def score(index: int) -> dict[str, float]:
            inputs, label = data[index]
            return {"loss": float(F.cross_entropy(model(inputs), label))}

        return mean_of_rows(score_each(world, len(data), score))
