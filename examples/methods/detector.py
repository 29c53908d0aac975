"""A detector of digits: every image has its own number of boxes, and the batch is not padded.

Shapes: B images, N boxes of all, G x G cells of 15: center here, 10 classes, offset, log of size.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from omegaconf import MISSING
from torch import Tensor, nn

from methods.digits import convolutions, digits
from overt import Recipe, StepOutput, World
from overt.evaluation import Row, mean_of_rows, score_batches

SIDE, CELL, HELD_OUT = 32, 4, 256  # pixels, pixels, images


@dataclass
class ModelSettings:
    width: int = MISSING


@dataclass
class Settings:
    model: ModelSettings = MISSING


@dataclass(frozen=True)
class Batch:
    images: Tensor  # (B, 1, SIDE, SIDE)
    boxes: Tensor  # (N, 4) center and size, (x, y, width, height), pixels
    labels: Tensor  # (N,)
    owners: Tensor  # (N,) the image of each box


@dataclass
class Scenes:  # one to four digits on a canvas, apart from each other
    part: str

    def __len__(self) -> int:
        return 4096

    def sample(self, index: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        canvas = torch.from_numpy(rng.normal(0, 0.1, (SIDE, SIDE)).astype(np.float32))
        (images, known), boxes, labels = digits(self.part), [], []
        for corner in rng.permutation(4)[: rng.integers(1, 5)]:
            number, (height, width) = rng.integers(len(images)), rng.integers(8, 15, 2)
            image = F.interpolate(images[number][None, None], (int(height), int(width)))[0, 0]
            top = 16 * (corner // 2) + rng.integers(0, 17 - height)
            left = 16 * (corner % 2) + rng.integers(0, 17 - width)
            canvas[top : top + height, left : left + width] += image
            boxes.append([left + width / 2, top + height / 2, width, height])
            labels.append(known[number])
        return canvas[None], torch.tensor(boxes, dtype=torch.float32), torch.tensor(labels)


class Detector(Recipe):
    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def build_model(self) -> nn.Sequential:
        width = self.settings.model.width
        return nn.Sequential(*convolutions(width, (1, 2, 2, 1)), nn.Conv2d(8 * width, 15, 1))

    def build_dataset(self) -> Scenes:
        return Scenes("train")

    def collate(self, samples: list[tuple[Tensor, Tensor, Tensor]]) -> Batch:
        images, boxes, labels = zip(*samples, strict=True)
        owners = torch.arange(len(samples)).repeat_interleave(torch.tensor(list(map(len, boxes))))
        return Batch(torch.stack(images), torch.cat(boxes), torch.cat(labels), owners)

    def example_batch(self, size: int) -> Batch:
        scene = (torch.zeros(1, SIDE, SIDE), torch.full((4, 4), 8.0), torch.zeros(4).long())
        return self.collate([scene] * size)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        return {"boxes": torch.tensor(float(len(batch.boxes)))}

    def loss(self, model: Any, batch: Batch, counts: dict[str, Tensor], step: int) -> StepOutput:
        outputs = model(batch.images)  # (B, 15, G, G)
        x, y = (batch.boxes[:, :2] / CELL).long().unbind(1)
        at = outputs[batch.owners, :, y, x]  # (N, 15) in the cells of the centers
        wanted = torch.zeros_like(outputs[:, 0]).index_put((batch.owners, y, x), at.new_ones(()))
        terms = {
            "center": F.binary_cross_entropy_with_logits(outputs[:, 0], wanted, reduction="sum"),
            "label": F.cross_entropy(at[:, 1:11], batch.labels, reduction="sum"),
            "offset": (at[:, 11:13] - (batch.boxes[:, :2] / CELL) % 1).abs().sum(),
            "size": (at[:, 13:] - (batch.boxes[:, 2:] / CELL).log()).abs().sum(),
        }
        return StepOutput({name: term / counts["boxes"] for name, term in terms.items()})

    def evaluate(self, model: Any, world: World) -> dict[str, float]:
        """Return F1: a box is found by one of its class that overlaps it by half or more."""
        scenes, device = Scenes("test"), next(model.parameters()).device

        def score(indices: range) -> list[Row]:
            samples = [scenes.sample(n, np.random.default_rng([1, n])) for n in indices]
            outputs = model(self.collate(samples).images.to(device)).cpu()
            return [compare(out, *rest) for out, (_, *rest) in zip(outputs, samples, strict=True)]

        rows = mean_of_rows(score_batches(world, HELD_OUT, 32, score))
        return {"f1": 2 * rows["found"] / (rows["boxes"] + rows["guessed"])}


def compare(output: Tensor, boxes: Tensor, labels: Tensor) -> Row:  # counts of an image
    peaks = (output[0] == F.max_pool2d(output[:1], 3, 1, 1)[0]) & (output[0] > 0)  # (G, G)
    y, x = peaks.nonzero(as_tuple=True)
    at = output[:, y, x].T  # (guesses, 15)
    centers, sizes = (torch.stack([x, y], 1) + at[:, 11:13]) * CELL, at[:, 13:].exp() * CELL
    low = torch.maximum((centers - sizes / 2)[:, None], boxes[:, :2] - boxes[:, 2:] / 2)
    high = torch.minimum((centers + sizes / 2)[:, None], boxes[:, :2] + boxes[:, 2:] / 2)
    shared = (high - low).clamp(min=0).prod(-1)  # (guesses, boxes)
    overlap = shared / (sizes.prod(1)[:, None] + boxes[:, 2:].prod(1) - shared)
    fits = (overlap >= 0.5) & (at[:, 1:11].argmax(1)[:, None] == labels)
    return {"boxes": len(boxes), "guessed": len(at), "found": float(fits.any(0).sum())}
