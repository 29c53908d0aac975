"""A small model, its optimizer, and comparisons, for the tests of checkpoints."""

from pathlib import Path

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, order=("first", "second", "third")):
        super().__init__()
        for name in order:
            self.add_module(name, nn.Linear(3, 3))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        for name in ("first", "second", "third"):
            x = getattr(self, name)(x)
        return x


class Parallel(nn.Module):
    """Names its inner module as DistributedDataParallel does."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def train(model, optimizer, steps=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3, generator=generator)).square().mean().backward()
        optimizer.step()


def adamw(model):
    return torch.optim.AdamW(
        [
            {"params": list(model.first.parameters()), "lr": 0.1, "weight_decay": 0.0},
            {"params": [*model.second.parameters(), *model.third.parameters()], "lr": 0.01},
        ],
        betas=(0.8, 0.9),
    )


def names(directory):
    """Without what is being deleted: that goes on while the run does."""
    found = sorted(path.name for path in Path(directory).iterdir())
    return [name for name in found if not name.startswith(".overt-deleting-")]


def same_entries(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
