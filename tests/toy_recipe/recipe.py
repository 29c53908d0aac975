"""Regression with masks of different size in every sample: the count of a loss is never uniform."""

import os
import signal
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from toy_recipe.config import DataSettings, Settings

from overt.distributed import World
from overt.errors import DataError
from overt.evaluation import mean_of_rows, score_each
from overt.nn.ema import update_ema
from overt.recipe import Recipe, StepOutput

WIDTH = 4


@dataclass(frozen=True)
class Batch:
    inputs: Tensor  # (B, WIDTH)
    targets: Tensor  # (B, WIDTH)
    mask: Tensor  # (B, WIDTH) 0 or 1
    indices: tuple[int, ...]


class Regression:
    def __init__(self, settings: DataSettings) -> None:
        self.settings = settings

    def __len__(self) -> int:
        return self.settings.samples

    def sample(self, index: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor, int]:
        if index == self.settings.broken_sample:
            raise DataError(f"toy file {index} is unreadable; write it again")
        inputs = torch.from_numpy(rng.standard_normal(WIDTH).astype(np.float32))
        targets = inputs.flip(0) * 0.5 + index / len(self)
        mask = (torch.arange(WIDTH) <= index % WIDTH).float()
        if index == self.settings.nan_sample:
            inputs = inputs * float("nan")
        return inputs, targets, mask, index


class Model(nn.Module):
    def __init__(self, width: int, dropout: float, idle_layer: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, width)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(width, WIDTH)
        self.target = nn.Linear(WIDTH, width).requires_grad_(False)  # moved by after_step
        self.idle = nn.Linear(1, 1) if idle_layer else None

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.dropout(torch.tanh(self.first(inputs))))


class Toy(Recipe):
    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def build_model(self) -> Model:
        model = self.settings.model
        return Model(model.width, model.dropout, model.idle_layer)

    def build_dataset(self) -> Regression:
        return Regression(self.settings.data)

    def collate(self, samples: list[tuple[Tensor, Tensor, Tensor, int]]) -> Batch:
        inputs, targets, mask, indices = zip(*samples, strict=True)
        return Batch(torch.stack(inputs), torch.stack(targets), torch.stack(mask), indices)

    def example_batch(self, size: int) -> Batch:
        data = self.build_dataset()
        return self.collate([data.sample(n, np.random.default_rng(n)) for n in range(size)])

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        return {"entries": batch.mask.sum()}

    def loss(
        self, model: nn.Module, batch: Batch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        die_at = os.environ.get("TOY_DIE_AT_STEP")
        if die_at is not None and step == int(die_at):
            os.kill(os.getpid(), signal.SIGKILL)
        error = (model(batch.inputs) - batch.targets).square()
        fit = (error * batch.mask).sum() / counts["entries"] * self.settings.loss.scale
        size = batch.inputs.detach().norm(dim=1).sum() / counts["samples"]
        return StepOutput({"fit": fit}, {"input_norm": size})

    def after_step(
        self, model: Model, step: int, applied: Tensor, carry: dict[str, Tensor]
    ) -> None:
        update_ema(model.target, model.first, 0.9, applied)

    def blocks(self, model: Model) -> list[nn.Module]:
        return [model.first, model.last]

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        data = Regression(self.settings.data)
        device = next(model.parameters()).device

        def score(index: int) -> dict[str, float]:
            inputs, targets, mask, _ = data.sample(index, np.random.default_rng([7, index]))
            output = model(inputs[None].to(device))[0].cpu()
            return {"error": float(((output - targets).square() * mask).sum() / mask.sum())}

        return mean_of_rows(score_each(world, self.settings.evaluation.samples, score))
