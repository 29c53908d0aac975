"""What all five trainings share: the data, the model, the loss, and a clock in the loss."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

SAMPLES, HELD_OUT, BATCH, LOG_EVERY = 4096, 101, 32, 50
TIMES: list[float] = []  # of each call of the loss in training
CPU_TIMES: list[float] = []  # the same of the process's CPU time


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Points of ten classes that a linear rule tells apart."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(count, 64, generator=generator)
        rule = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))
        self.labels = (self.inputs @ rule).argmax(1)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.labels[index]


def make_model() -> nn.Module:
    """Dropout, so that a resumed run has to go on with the same random numbers."""
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10))


def training_loss(logits: Tensor, labels: Tensor) -> Tensor:
    TIMES.append(time.perf_counter())
    CPU_TIMES.append(time.process_time())
    return F.cross_entropy(logits, labels)


def fill(model: nn.Module) -> None:
    """Weights that do not depend on who made the model, for the evaluation."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
