"""What deformable attention reads in the tests: positions inside, across the border and outside."""

from typing import NamedTuple

import torch
from torch import Tensor

from overt.ops.deformable.plain import Sizes

FOUR_LEVELS = ((8, 12), (4, 6), (2, 3), (1, 1))
TWO_LEVELS = ((5, 7), (2, 3))


class Case(NamedTuple):
    values: Tensor
    reference: Tensor
    offsets: Tensor
    logits: Tensor
    sizes: Sizes


def make_case(
    sizes: Sizes, queries: int, heads: int, places: int, channels: int, device: str = "cpu"
) -> Case:
    """Places inside, on cells, across the border, far outside."""
    generator = torch.Generator().manual_seed(queries + places)
    cells = sum(height * width for height, width in sizes)
    levels = len(sizes)
    values = torch.randn(2, cells, heads, channels, generator=generator)
    reference = torch.rand(2, queries, levels, 2, generator=generator)
    reference[0, 0] = torch.tensor([0.0, 1.0])
    offsets = torch.randn(2, queries, heads, levels, places, 2, generator=generator) * 2
    offsets[0, 0, 0] = 0.0
    offsets[1, 0, 0] *= 1e6
    logits = torch.randn(2, queries, heads, levels, places, generator=generator)
    tensors = (part.to(device) for part in (values, reference, offsets, logits))
    return Case(*tensors, sizes)
