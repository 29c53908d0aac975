"""Two networks that take turns: a GAN on the toy recipe's data, with an update for each."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy_recipe.config import Settings
from toy_recipe.recipe import WIDTH, Regression

from overt.distributed import World
from overt.recipe import Recipe, StepOutput


@dataclass(frozen=True)
class Batch:
    inputs: Tensor  # (B, WIDTH) what the generator starts from
    targets: Tensor  # (B, WIDTH) what it should make
    turn: str = "critic"  # whose loss is meant


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(WIDTH, width), nn.Tanh(), nn.Linear(width, WIDTH))
        self.critic = nn.Sequential(nn.Linear(WIDTH, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, inputs: Tensor, targets: Tensor, turn: str) -> tuple[Tensor, Tensor]:
        """Scores of what was made, (B, 1), and of what is real, (B, 1)."""
        made = self.generator(inputs)
        if turn == "critic":
            made = made.detach()
        return self.critic(made), self.critic(targets)


class Gan(Recipe):
    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def build_model(self) -> Model:
        return Model(self.settings.model.width)

    def build_dataset(self) -> Regression:
        return Regression(self.settings.data)

    def collate(self, samples: list[tuple[Tensor, Tensor, Tensor, int]]) -> Batch:
        inputs, targets, _, _ = zip(*samples, strict=True)
        return Batch(torch.stack(inputs), torch.stack(targets))

    def example_batch(self, size: int) -> Batch:
        data = self.build_dataset()
        return self.collate([data.sample(n, np.random.default_rng(n)) for n in range(size)])

    def blocks(self, model: Model) -> list[nn.Module]:
        return [model.generator, model.critic]

    def loss(
        self, model: nn.Module, batch: Batch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        made, real = model(batch.inputs, batch.targets, batch.turn)
        if batch.turn == "critic":
            loss = F.softplus(made).sum() + F.softplus(-real).sum()
        else:
            loss = F.softplus(-made).sum()
        return StepOutput({batch.turn: loss / counts["samples"]})

    def custom_step(
        self, trainer: Any, micro_batches: list[Any], counts: dict[str, Tensor]
    ) -> tuple[list[StepOutput], Tensor, Tensor]:
        for turn in ("critic", "generator"):
            own = [replace(one, batch=replace(one.batch, turn=turn)) for one in micro_batches]
            outputs = trainer.add_gradients(own, counts, only=f"{turn}.")
            self.see(trainer, turn)
            norm, applied = trainer.update(only=f"{turn}.")
        return outputs, norm, applied

    def see(self, trainer: Any, turn: str) -> None:
        """Look at the gradients of a turn; for tests."""

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        return {"error": 0.0}
