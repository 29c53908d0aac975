"""DINO (Caron et al., 2021) on digits with ragged crops: their number and size are random.

Shapes: B samples, N small crops of the whole batch, S their side, C classes that nobody named.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from omegaconf import MISSING
from torch import Tensor, nn

from methods.digits import convolutions, digits, knn_scores, moved
from overt import Recipe, StepOutput, World
from overt.nn.ema import update_ema

SIDES, STUDENT, TEACHER = (12, 14), 0.6, 0.12  # of small crops, pixels; temperatures


@dataclass
class ModelSettings:
    width: int = MISSING
    classes: int = MISSING
    momentum: float = MISSING  # of the teacher's weights


@dataclass
class Settings:
    model: ModelSettings = MISSING


@dataclass(frozen=True)
class Batch:
    views: Tensor  # (B, 2, 1, H, W)
    crops: tuple[Tensor, ...]  # for each side (n, 1, S, S); empty ones count: FSDP waits for all
    owners: Tensor  # (N,) the sample of each crop


class Crops:
    """Two views of a digit, and one to three small crops of others."""

    def __len__(self) -> int:
        return len(digits("train")[0])

    def sample(self, index: int, rng: np.random.Generator) -> tuple[Tensor, list[Tensor]]:
        image, crops = digits("train")[0][index], []
        for _ in range(rng.integers(1, 4)):
            side = int(rng.choice(SIDES))
            top, left = rng.integers(0, 17 - side, 2)
            crops.append(moved(image, rng)[:, top : top + side, left : left + side])
        return torch.stack([moved(image, rng), moved(image, rng)]), crops


def network(size: ModelSettings) -> nn.Sequential:
    encoder = (*convolutions(size.width, (2, 1), 5), nn.AdaptiveMaxPool2d(4), nn.Flatten())
    head = (nn.Linear(32 * size.width, 128), nn.GELU(), nn.Linear(128, 32))
    norm = nn.RMSNorm(32, elementwise_affine=False)  # without it all outputs become the same
    return nn.Sequential(*encoder, *head, norm, nn.Linear(32, size.classes, bias=False))


class Model(nn.Module):
    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.student, self.teacher = network(settings), network(settings).requires_grad_(False)
        self.teacher.load_state_dict(self.student.state_dict())
        self.register_buffer("center", torch.zeros(settings.classes))  # of the teacher's outputs

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs of both networks for the views (2, B, C), and for all crops (N, C)."""
        views = batch.views.transpose(0, 1).flatten(0, 1)  # (2 B, 1, H, W)
        crops = torch.cat([self.student(crops) for crops in batch.crops])
        with torch.no_grad():
            targets = self.teacher(views).unflatten(0, (2, -1)) - self.center
        return self.student(views).unflatten(0, (2, -1)), targets, crops


class Dino(Recipe):
    gathers_carry = True

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def build_model(self) -> Model:
        return Model(self.settings.model)

    def build_dataset(self) -> Crops:
        return Crops()

    def collate(self, samples: list[tuple[Tensor, list[Tensor]]]) -> Batch:
        pairs = [(owner, crop) for owner, (_, own) in enumerate(samples) for crop in own]
        by_side = [[pair for pair in pairs if pair[1].shape[-1] == side] for side in SIDES]
        starts = [torch.zeros(0, 1, side, side) for side in SIDES]
        both = zip(starts, by_side, strict=True)
        crops = [torch.cat([start, *(crop[None] for _, crop in own)]) for start, own in both]
        owners = torch.tensor([owner for own in by_side for owner, _ in own])
        return Batch(torch.stack([views for views, _ in samples]), tuple(crops), owners)

    def example_batch(self, size: int) -> Batch:
        return self.collate([(torch.zeros(2, 1, 16, 16), [torch.zeros(1, 14, 14)] * 3)] * size)

    def counts(self, batch: Batch) -> dict[str, Tensor]:  # a view meets one view, a crop two
        return {"pairs": torch.tensor(2.0 * len(batch.views) + 2.0 * len(batch.owners))}

    def loss(self, model: Any, batch: Batch, counts: dict[str, Tensor], step: int) -> StepOutput:
        views, targets, crops = model(batch)
        wanted = (targets / TEACHER).softmax(-1)  # (2, B, C)
        loss = -(wanted.flip(0) * (views / STUDENT).log_softmax(-1)).sum()
        loss = loss - (wanted.sum(0)[batch.owners] * (crops / STUDENT).log_softmax(-1)).sum()
        return StepOutput({"dino": loss / counts["pairs"]}, carry={"targets": targets.mean(0)})

    def after_step(self, model: Model, step: int, applied: Tensor, carry: dict[str, Any]) -> None:
        update_ema(model.teacher, model.student, self.settings.model.momentum, applied)
        model.center += applied * 0.9 * carry["targets"].mean(0)  # fast, lest outputs collapse

    def blocks(self, model: Model) -> list[nn.Module]:
        return [model.student]

    def evaluate(self, model: Model, world: World) -> dict[str, float]:
        return knn_scores(model.student[:-5], lambda: network(self.settings.model)[:-5])
