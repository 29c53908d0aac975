"""Learn to tell shapes apart: a small convolutional network on drawings made on the fly."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overt.distributed import World
from overt.evaluation import Row, mean_of_rows, score_each
from overt.recipe import Recipe, StepOutput
from own_recipe.config import DataSettings, Settings
from own_recipe.drawing import KINDS, draw

HELD_OUT = 20_000  # the generators of held-out drawings start from (HELD_OUT, index)
ROWS, COLUMNS = 4, 8  # of the picture


@dataclass(frozen=True)
class Drawings:
    """A batch."""

    images: Tensor  # (B, 3, H, W) float32, 0 to 1
    labels: Tensor  # (B,) int64, index into KINDS


class ShapeSource:
    """Training samples: which shape follows from the index, all the rest from the generator."""

    def __init__(self, settings: DataSettings) -> None:
        self.settings = settings

    def __len__(self) -> int:
        return self.settings.samples

    def sample(self, index: int, rng: np.random.Generator) -> tuple[Tensor, int]:
        label = index % len(KINDS)
        image = draw(KINDS[label], self.settings.size, self.settings.noise, rng)
        return torch.from_numpy(image), label


class ShapeNet(nn.Module):
    """Three convolutions, the strongest response of each channel, one linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [3, width, 2 * width, 4 * width]
        # GroupNorm, not BatchNorm: no sample may affect another.
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, after, 5, stride=2, padding=2), nn.GroupNorm(4, after), nn.ReLU()
            )
            for before, after in pairwise(widths)
        )
        self.head = nn.Linear(widths[-1], len(KINDS))

    def forward(self, images: Tensor) -> Tensor:
        features = images - 0.5  # (B, 3, H, W)
        for block in self.blocks:
            features = block(features)
        scores: Tensor = self.head(features.amax(dim=(2, 3)))  # (B, KINDS)
        return scores


class Shapes(Recipe):
    """What the engine asks of a recipe, and nothing else."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def build_model(self) -> ShapeNet:
        return ShapeNet(self.settings.model.width)

    def build_dataset(self) -> ShapeSource:
        return ShapeSource(self.settings.data)

    def collate(self, samples: list[tuple[Tensor, int]]) -> Drawings:
        images, labels = zip(*samples, strict=True)
        return Drawings(torch.stack(images), torch.tensor(labels))

    def example_batch(self, size: int) -> Drawings:
        """For `overt plan`: drawings are made up anyway; data from files would not be read."""
        source = self.build_dataset()
        return self.collate([source.sample(n, np.random.default_rng(n)) for n in range(size)])

    def loss(
        self, model: nn.Module, batch: Drawings, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        logits = model(batch.images)
        # A sum over this micro-batch, divided by the number of samples of the global batch.
        entropy = F.cross_entropy(
            logits,
            batch.labels,
            reduction="sum",
            label_smoothing=self.settings.loss.label_smoothing,
        )
        right = (logits.argmax(1) == batch.labels).sum()
        return StepOutput(
            losses={"entropy": entropy / counts["samples"]},
            metrics={"accuracy": right / counts["samples"]},
        )

    def blocks(self, model: ShapeNet) -> list[nn.Module]:
        return list(model.blocks)

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        """The share of held-out drawings that are recognized."""

        def score(index: int) -> Row:
            image, label = self.held_out(index)
            return {"accuracy": float(self.guess(model, image[None]).item() == label)}

        return mean_of_rows(score_each(world, self.settings.evaluation.samples, score))

    def visualize(self, model: nn.Module) -> dict[str, Tensor]:
        """Held-out drawings, framed green where they are recognized and red where not."""
        drawings = [self.held_out(index) for index in range(ROWS * COLUMNS)]
        images = torch.stack([image for image, _ in drawings])
        right = self.guess(model, images) == torch.tensor([label for _, label in drawings])
        green, red = torch.tensor([0.1, 0.8, 0.2]), torch.tensor([1.0, 0.1, 0.1])
        color = torch.where(right[:, None], green, red)  # (ROWS * COLUMNS, 3)
        height, width = images.shape[-2:]
        framed = color[:, :, None, None].repeat(1, 1, height + 4, width + 4)
        framed[:, :, 2:-2, 2:-2] = images
        rows = [torch.cat(list(row), dim=2) for row in torch.split(framed, COLUMNS)]
        picture = torch.cat(rows, dim=1)  # (3, ROWS * (H + 4), COLUMNS * (W + 4))
        return {"guesses": (picture * 255).round().to(torch.uint8)}

    def held_out(self, index: int) -> tuple[Tensor, int]:
        """A drawing that training never sees: its generator is none of the samples'."""
        rng = np.random.default_rng([HELD_OUT, index])
        return ShapeSource(self.settings.data).sample(index, rng)

    def guess(self, model: nn.Module, images: Tensor) -> Tensor:
        """(B,) the likeliest shape of each image, on the CPU."""
        device = next(model.parameters()).device
        scores: Tensor = model(images.to(device))
        return scores.argmax(1).cpu()
