"""Clouds for the tests of point search."""

import torch
from torch import Tensor

KINDS = ("random", "lattice", "twice")


def cloud(batch: int, points: int, kind: str, seed: int = 0) -> Tensor:
    """Random points; on a lattice, so that distances tie; or many of them twice."""
    generator = torch.Generator().manual_seed(seed)
    coords = torch.randn(batch, points, 3, generator=generator)
    if kind == "lattice":
        return (coords * 2).round() / 2
    if kind == "twice":
        coords[:, points // 2 :] = coords[:, : points - points // 2]
    return coords
