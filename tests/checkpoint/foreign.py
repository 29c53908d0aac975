"""What files of others hold: a small tracker, and an object that would run code."""

import os

import torch
from torch import nn


class Tracker(nn.Module):
    computed_tensors = ("time_emb",)

    def __init__(self, frames=8, width=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, width), nn.LayerNorm(width))
        self.head = nn.Linear(width, 2)
        self.register_buffer("time_emb", torch.randn(1, frames, width))
        self.register_buffer("count", torch.tensor(0))


class Runs:
    """Would make a file if it were ever loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)
