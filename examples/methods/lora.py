"""LoRA: adapt a frozen network to another task; its checkpoint holds the adapters alone.

`Classifier` learns digits. `Lora` adapts it to pale ones, gray on gray, from a hundred samples.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from omegaconf import MISSING
from torch import Tensor, nn

from methods.digits import digits
from overt import Recipe, StepOutput, World
from overt.evaluation import Row, mean_of_rows, score_batches
from overt.nn.base import stand_on
from overt.nn.lora import add_lora

SAMPLES = 100  # pale ones to adapt with


@dataclass
class ModelSettings:
    width: int = MISSING


@dataclass
class Settings:
    model: ModelSettings = MISSING


@dataclass
class LoraModelSettings(ModelSettings):
    # checkpoint of the classifier
    base: str = MISSING
    # inner size of the adapters
    rank: int = MISSING


@dataclass
class LoraSettings:
    model: LoraModelSettings = MISSING


class Digits:
    def __init__(self, part: str, pale: bool) -> None:
        images, labels = digits(part)
        shown = SAMPLES if pale and part == "train" else len(images)
        self.images = (0.5 + 0.3 * images if pale else images)[:shown]  # (n, 8, 8)
        self.labels = torch.from_numpy(labels)[:shown]

    def __len__(self) -> int:
        return len(self.images)

    def sample(self, index: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return self.images[index].flatten(), self.labels[index]


class Classifier(Recipe):
    pale = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def build_model(self) -> nn.Sequential:
        width = self.settings.model.width
        hidden = (nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        return nn.Sequential(*hidden, nn.Linear(width, 10))

    def build_dataset(self) -> Digits:
        return Digits("train", self.pale)

    def collate(self, samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        images, labels = zip(*samples, strict=True)
        return torch.stack(images), torch.stack(labels)

    def example_batch(self, size: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(size, 64), torch.zeros(size, dtype=torch.int64)

    def loss(self, model: Any, batch: Any, counts: dict[str, Tensor], step: int) -> StepOutput:
        entropy = F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        return StepOutput({"entropy": entropy / counts["samples"]})

    def blocks(self, model: nn.Sequential) -> list[nn.Module]:
        return [layer for layer in model if isinstance(layer, nn.Linear)]

    def evaluate(self, model: nn.Sequential, world: World) -> dict[str, float]:
        test = Digits("test", self.pale)
        device = next(model.parameters()).device

        def score(indices: range) -> list[Row]:
            images, labels = self.collate(
                [test.sample(n, np.random.default_rng()) for n in indices]
            )
            right = model(images.to(device)).argmax(1).cpu() == labels
            return [{"accuracy": float(each)} for each in right]

        return mean_of_rows(score_batches(world, len(test), 64, score))


class Lora(Classifier):
    pale = True
    settings: LoraSettings

    def __init__(self, settings: LoraSettings) -> None:
        self.settings = settings

    def build_model(self) -> nn.Sequential:
        model = super().build_model()
        add_lora(model, match=".*", rank=self.settings.model.rank)
        # Frozen weights come from the base, and are in no checkpoint of this run.
        stand_on(model, self.settings.model.base, "model.base")
        return model
