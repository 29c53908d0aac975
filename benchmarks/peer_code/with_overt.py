"""The training with overt, from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from shared import BATCH, HELD_OUT, LOG_EVERY, SAMPLES, Points, fill, make_model, training_loss
from torch import Tensor, nn
from torch.nn import functional as F

import overt
from overt.distributed import init_distributed, shutdown
from overt.evaluation import mean_of_rows, score_each


class Source(Points):
    def sample(self, index: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        return self[index]


class Peer(overt.Recipe):
    def build_model(self) -> nn.Module:
        return make_model()

    def build_dataset(self) -> Source:
        return Source(SAMPLES, seed=1)

    def collate(self, samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
        return tuple(torch.stack(part) for part in zip(*samples, strict=True))

    def loss(self, model: Any, batch: Any, counts: Any, step: int) -> overt.StepOutput:
        mean = training_loss(model(batch[0]), batch[1])
        return overt.StepOutput({"entropy": mean * len(batch[1]) / counts["samples"]})

    def evaluate(self, model: nn.Module, world: overt.World) -> dict[str, float]:
        data = Points(HELD_OUT, seed=2)

        def score(index: int) -> dict[str, float]:
            return {"loss": float(F.cross_entropy(model(data[index][0]), data[index][1]))}

        return mean_of_rows(score_each(world, len(data), score))


def train(steps: int, folder: Path) -> nn.Module:
    training = {"num_steps": steps, "batch_size": BATCH, "num_workers": 0, "device": "cpu"}
    return overt.train(
        Peer,
        output_dir=folder,
        training=training | {"grad_clip_norm": 1.0},
        optimizer=("adamw", {"lr": 1e-3}),
        schedule="constant",  # so that a longer run begins as a shorter one
        logging={"every_steps": LOG_EVERY},
        checkpoint={"every_steps": 10**9, "accept_changes": ["training.num_steps"]},
    ).load_model()


def evaluate() -> float:
    world, model = init_distributed("cpu"), make_model().eval()
    fill(model)
    score = Peer().evaluate(model, world)["loss"]
    shutdown()
    return score
