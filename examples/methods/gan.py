"""A GAN on 8 x 8 digits: two networks, two optimizers, one step with two updates.

Shapes: B samples, P = 64 pixels, Z noise.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from omegaconf import MISSING
from torch import Tensor, nn

from methods.digits import digits
from overt import Recipe, StepOutput, World

PIXELS, NOISE, NEIGHBORS = 64, 16, 5  # the last one is of the scores
PENALTY = 0.1  # on the critic's squared gradient at real images (R1, Mescheder et al., 2018)


@dataclass
class ModelSettings:
    width: int = MISSING


@dataclass
class Settings:
    model: ModelSettings = MISSING


@dataclass(frozen=True)
class Batch:
    noise: Tensor  # (B, Z)
    real: Tensor  # (B, P) from -1 to 1
    turn: str = "critic"  # whose loss is meant


def pixels(part: str) -> Tensor:
    return digits(part)[0].flatten(1) * 2 - 1  # (n, P)


def network(inputs: int, width: int, *last: nn.Module) -> nn.Sequential:
    hidden = (nn.Linear(inputs, width), nn.LeakyReLU(0.2), nn.Linear(width, width))
    return nn.Sequential(*hidden, nn.LeakyReLU(0.2), *last)


class Model(nn.Module):
    def __init__(self, size: ModelSettings) -> None:
        super().__init__()
        self.generator = network(NOISE, size.width, nn.Linear(size.width, PIXELS), nn.Tanh())
        self.critic = network(PIXELS, size.width, nn.Linear(size.width, 1))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:  # of generated, of real: (B, 1)
        return self.critic(self.generator(batch.noise)), self.critic(batch.real)


class Digits:
    def __len__(self) -> int:
        return len(pixels("train"))

    def sample(self, index: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(rng.standard_normal(NOISE, np.float32)), pixels("train")[index]


class Gan(Recipe):
    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def build_model(self) -> Model:
        return Model(self.settings.model)

    def build_dataset(self) -> Digits:
        return Digits()

    def collate(self, samples: list[tuple[Tensor, Tensor]]) -> Batch:
        noise, real = zip(*samples, strict=True)
        return Batch(torch.stack(noise), torch.stack(real))

    def example_batch(self, size: int) -> Batch:
        return Batch(torch.zeros(size, NOISE), torch.zeros(size, PIXELS))

    def loss(self, model: Any, batch: Batch, counts: dict[str, Tensor], step: int) -> StepOutput:
        if batch.turn == "generator":
            loss = F.softplus(-model(batch)[0]).sum()
            return StepOutput({"generator": loss / counts["samples"]})
        real = batch.real.detach().requires_grad_()
        generated, scores = model(replace(batch, real=real))
        slope = torch.autograd.grad(scores.sum(), real, create_graph=True)[0].square().sum()
        loss = F.softplus(generated).sum() + F.softplus(-scores).sum()
        terms = {"critic": loss, "slope": PENALTY * slope}
        return StepOutput({name: term / counts["samples"] for name, term in terms.items()})

    def custom_step(
        self, trainer: Any, micro_batches: list[Any], counts: dict[str, Tensor]
    ) -> tuple[list[StepOutput], Tensor, Tensor]:
        for turn in ("critic", "generator"):
            own = [replace(micro, batch=replace(micro.batch, turn=turn)) for micro in micro_batches]
            outputs = trainer.add_gradients(own, counts, only=f"{turn}.")
            norm, applied = trainer.update(only=f"{turn}.")
        return outputs, norm, applied

    def evaluate(self, model: Model, world: World) -> dict[str, float]:
        """Return precision and coverage (Naeem et al., 2020), and those of a Gaussian's samples."""
        real, generator = pixels("test"), torch.Generator().manual_seed(0)
        noise = torch.randn(len(real), NOISE, generator=generator)
        made = model.generator(noise.to(next(model.parameters()))).cpu().float()
        mean, spread = pixels("train").mean(0), pixels("train").T.cov() + 1e-4 * torch.eye(PIXELS)
        draws = torch.randn(len(real), PIXELS, generator=generator)
        gaussian = mean + draws @ torch.linalg.cholesky(spread).T
        baseline = {f"gaussian_{name}": value for name, value in likeness(real, gaussian).items()}
        return likeness(real, made) | baseline


def likeness(real: Tensor, made: Tensor) -> dict[str, float]:
    """Return how many made images lie among real ones, and how many real ones are met."""
    radius = torch.cdist(real, real).kthvalue(NEIGHBORS + 1, dim=1).values
    inside = torch.cdist(real, made) <= radius[:, None]  # (real, made)
    precision, coverage = inside.any(0).float().mean(), inside.any(1).float().mean()
    return {"precision": float(precision), "coverage": float(coverage)}
