"""Noise samples in the shapes of training, for `overt plan` and benchmarks; no file is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from overt.data.images.decode import Shrink
from overt.data.images.files import UNLABELED
from overt.data.rng import sample_rng, sample_rngs
from overt.recipes.hjepa.config import Settings
from overt.recipes.hjepa.data import MaskedImages, Masks, Places, Sample

MASKS_DRAWN = 2048  # of which the largest batch is taken
# Memory of a visible patch, which passes through encoder and predictor, relative to a predicted
# one.
VISIBLE_COST = 4


class NoiseImages:
    """Images of noise with the interface of a folder."""

    classes: tuple[str, ...] = ()

    def __init__(self, count: int, size: Sequence[int]) -> None:
        self.names = ["noise"] * count
        self.labels = np.full(count, UNLABELED, np.int64)
        self.size = tuple(size)  # (height, width)

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int, shrink: Shrink | None = None) -> tuple[Tensor, int]:
        pixels = np.random.default_rng(index).integers(0, 256, (3, *self.size), dtype=np.uint8)
        return torch.from_numpy(pixels), UNLABELED


def example_samples(settings: Settings, size: int) -> list[Sample]:
    """Return the samples of one batch: transformed noise, and masks of the largest size."""
    source = MaskedImages(NoiseImages(size, settings.data.image_size), settings)
    samples = [source.sample(index, sample_rng(0, 0, index)) for index in range(size)]
    if settings.data.masking.fixed_shapes:  # all batches are filled up to the same size
        return samples
    masks = large_masks(source.masks, size)
    return [
        dataclasses.replace(sample, contexts=contexts, targets=targets)
        for sample, (contexts, targets) in zip(samples, masks, strict=True)
    ]


def large_masks(masks: Masks, size: int) -> list[tuple[Places, Places]]:
    """Return the masks with the highest memory use among several sampled batches.

    Batches differ in their number of patches, small ones by a third: a plan is for the large ones.
    """
    count = size * max(MASKS_DRAWN // size, 1)
    drawn = [masks.draw(rng) for rng in sample_rngs(0, 0, range(count))]

    def cost(batch: list[tuple[Places, Places]]) -> int:
        visible = sum(len(patches) for contexts, _ in batch for patches in contexts)
        predicted = sum(len(patches) for _, targets in batch for patches in targets)
        return VISIBLE_COST * visible + predicted

    return max((drawn[first : first + size] for first in range(0, count, size)), key=cost)
