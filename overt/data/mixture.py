"""A data set composed of others, each with its share of the samples."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from overt.errors import DataError


class Source(Protocol):
    """Samples by index; all randomness of a sample comes from the generator given."""

    def __len__(self) -> int: ...

    def sample(self, index: int, rng: np.random.Generator) -> Any: ...


class Mixture:
    """Several sources in proportion to their weights.

    An epoch has as many samples as the sources together. Every source gets its share of them to the
    nearest sample, in every epoch alike, and the share is spread evenly over the source: a source
    asked for as many samples as it has gives each once, one asked for half of them gives one of
    every two neighbours, drawn anew each epoch.
    """

    def __init__(self, sources: Sequence[Source], weights: Sequence[float]) -> None:
        if not sources or len(sources) != len(weights):
            raise DataError(
                f"{len(sources)} sources with {len(weights)} weights; a mixture needs at least one "
                "source, and a weight for each"
            )
        for number, (source, weight) in enumerate(zip(sources, weights, strict=True)):
            if len(source) == 0:
                raise DataError(f"source {number} of the mixture has no samples; leave it out")
            if not 0 < weight < math.inf:
                raise DataError(
                    f"source {number} of the mixture has weight {weight}; allowed is a number "
                    "above 0"
                )
        self.sources = list(sources)
        self.shares = _shares(sum(len(source) for source in sources), weights)
        if 0 in self.shares:
            number = self.shares.index(0)
            raise DataError(
                f"source {number} of the mixture has weight {weights[number]} of {sum(weights)}, "
                f"less than one of the {sum(self.shares)} samples of an epoch; raise it or leave "
                "the source out"
            )
        # Indices up to ends[k] belong to the sources 0 to k.
        self.ends = list(accumulate(self.shares))

    def __len__(self) -> int:
        return self.ends[-1]

    def sample(self, index: int, rng: np.random.Generator) -> Any:
        """The sample `index` of an epoch; a function of the arguments alone, in constant time."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number = bisect_right(self.ends, index)
        source, share = self.sources[number], self.shares[number]
        place = index - (self.ends[number] - share)
        # A place in the `place`-th of `share` equal stretches of the source.
        stretch = place * len(source) + int(rng.random() * len(source))
        return source.sample(stretch // share, rng)


def _shares(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to the weights that add up to `total`."""
    scale = total / sum(weights)
    shares = [math.floor(weight * scale) for weight in weights]
    remainders = [share - weight * scale for share, weight in zip(shares, weights, strict=True)]
    largest = sorted(range(len(weights)), key=lambda number: remainders[number])
    for number in largest[: total - sum(shares)]:
        shares[number] += 1
    return shares
