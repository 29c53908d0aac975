"""What is correlated in the tests: squares around positions inside, at the border and outside."""

from typing import NamedTuple

import torch
from torch import Tensor

from overt.ops.correlation.taps import SquareTaps


class Case(NamedTuple):
    cells: Tensor
    support: Tensor
    map_rows: Tensor
    sizes_xy: Tensor
    centres_xy: Tensor
    taps: SquareTaps


def make_case(radius: int, channels: int, points: int, frames: int, device: str) -> Case:
    """Two samples, three levels; centres inside, on cells, at the border and far outside."""
    generator = torch.Generator().manual_seed(radius + frames)
    batch, sizes = 2, torch.tensor([[13, 9], [6, 4], [3, 2]])
    area = sizes.prod(-1)
    first = (area.cumsum(0) - area) * batch * frames
    order = torch.arange(batch * frames).view(batch, 1, frames)
    cells = torch.randn(int(area.sum()) * batch * frames, channels, generator=generator)
    samples = (2 * radius + 1) ** 2
    support = torch.randn(batch, points, 3, samples, channels, generator=generator)
    centres = torch.randn(batch, points, 3, frames, 2, generator=generator) * 5 + 4
    centres[0, 0, 0, 0] = torch.tensor([2.0, 3.0])
    centres[0, 0, 1, 0] = torch.tensor([-1000.0, 5000.5])
    centres[1, 0, 2, 0] = torch.tensor([2.0, 1.0])  # the last cell
    tensors = (cells, support, first[:, None] + order * area[:, None], sizes, centres)
    return Case(*(tensor.to(device) for tensor in tensors), SquareTaps(radius).to(device))
