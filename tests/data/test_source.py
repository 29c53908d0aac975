"""overt/data/source.py: what is no source is refused by what it lacks."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from overt.data.source import check_source
from overt.errors import ConfigError


class Source:
    def __len__(self) -> int:
        return 3

    def sample(self, index: int, rng: np.random.Generator) -> int:
        return index


class WithoutGenerator(Source):
    def sample(self, index: int) -> int:  # type: ignore[override]
        return index


class OfTorch(Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        yield 1


def test_a_source_passes_also_with_a_function_of_c() -> None:
    check_source(Source())
    odd: Any = Source()
    odd.sample = max  # without a signature that Python knows
    check_source(odd)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (OfTorch(), r"returned a OfTorch, which has no sample\(index, rng\)"),
        (Endless(), "returned a Endless, which has no length"),
        (None, "returned a NoneType, which has no length"),
        (WithoutGenerator(), r"WithoutGenerator.sample cannot be called as sample\(index, rng\)"),
    ],
)
def test_what_is_no_source_is_refused_before_anything_is_read(source: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_source(source)
