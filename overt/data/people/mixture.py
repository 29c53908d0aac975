"""Several data sets of people in given proportions: the set is sampled first, then the row."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from overt.data.source import SampleSource
from overt.errors import DataError


class DrawnMixture:
    """Samples a source by its fraction, then one of its rows, in constant time.

    An epoch has as many samples as the largest source. All randomness comes from the sample's own
    generator, so no two ranks sample the same rows.
    """

    def __init__(self, sources: Sequence[SampleSource], weights: Sequence[float]) -> None:
        if not sources or len(sources) != len(weights):
            raise DataError(f"{len(sources)} data sets with {len(weights)} weights; each needs one")
        if any(not 0 < weight < math.inf for weight in weights):
            raise DataError(f"the weights are {list(weights)}; each must be a number above 0")
        self.sources = list(sources)
        self.ends = [end / sum(weights) for end in accumulate(weights)]
        self.ends[-1] = 1.0  # whatever rounding did

    def __len__(self) -> int:
        return max(len(source) for source in self.sources)

    def sample(self, index: int, rng: np.random.Generator) -> Any:
        if len(self.sources) == 1:  # an epoch visits each row once
            return self.sources[0].sample(index, rng)
        source = self.sources[bisect_right(self.ends, rng.random())]
        return source.sample(int(rng.integers(len(source))), rng)
