"""A data set composed of others, in proportion to weights.

Use `InterleavedMixture` for anything new. `Mixture` reproduces the samples of runs that were
started with it.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.data.permutation import PATTERN, order_of, random_stream
from overt.data.recent import Recent
from overt.data.source import EpochOrder, SampleSource, SampleStream, SplitStream
from overt.errors import DataError

# Positions whose sources are shuffled together: only their pattern is held in memory.
PATTERN_LENGTH = 1024


class InterleavedMixture:
    """Several sources interleaved in proportion to their weights, each in its own order.

    An epoch has `samples` samples, by default as many as the sources together. Each source gets its
    exact fraction of every epoch, rounded by largest remainder and spread evenly. A source is
    traversed without repetition, then again in another order: a traversal continues in the next
    epoch where the last one stopped. Streams and mixtures can be sources.

    Everything follows from (position, epoch, seed), so ranks, workers and resumes change nothing.
    """

    def __init__(
        self,
        sources: Sequence[SampleSource],
        weights: Sequence[float],
        samples: int | None = None,
    ) -> None:
        _check(sources, weights)
        self.sources, self.lengths = list(sources), [len(source) for source in sources]
        # Only once: an isinstance check of a protocol takes longer than reading many samples.
        self.streams = [source if isinstance(source, SampleStream) else None for source in sources]
        total = sum(self.lengths) if samples is None else samples
        if total < 1:
            raise DataError(f"samples={samples} of a mixture; expected 1 or more")
        # Decimal as written: 0.7 is 7/10 here, so that ties are those that the user expects.
        self.counts = _apportion(total, [Fraction(repr(float(weight))) for weight in weights])
        _refuse_empty(self.counts, weights)
        self._orders: Recent[tuple[int, int, int], EpochOrder] = Recent(2 * len(self.sources))
        self._patterns: Recent[tuple[int, int, int], _Pattern] = Recent(4)

    def __len__(self) -> int:
        return sum(self.counts)

    def sample(self, index: int, rng: np.random.Generator) -> Any:
        """Return a sample of epoch 0 with seed 0; the engine uses `sample_at`."""
        return self.sample_at(position=index, epoch=0, seed=0, rng=rng)

    def sample_at(self, position: int, epoch: int, seed: int, rng: np.random.Generator) -> Any:
        """Return the sample at a position of an epoch, in constant time."""
        number, preceding = self.source_at(position, epoch, seed)
        # Samples that this source provided in all previous epochs count as well.
        passes, offset = divmod(epoch * self.counts[number] + preceding, self.lengths[number])
        source, own_seed = self.sources[number], _seed_of_source(seed, number)
        stream = self.streams[number]
        if stream is not None:
            return stream.sample_at(position=offset, epoch=passes, seed=own_seed, rng=rng)
        key = (number, passes, own_seed)
        order = self._orders.get(key, lambda: order_of(source, own_seed, passes))
        return source.sample(int(order[offset : offset + 1][0]), rng)

    def source_at(self, position: int, epoch: int, seed: int) -> tuple[int, int]:
        """Return the source of a position, and its earlier samples in this epoch."""
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of {len(self)}")
        block, within = divmod(position, PATTERN_LENGTH)
        key = (block, epoch, seed)
        pattern = self._patterns.get(key, lambda: self._pattern(block, epoch, seed))
        return int(pattern.sources[within]), int(pattern.preceding[within])

    def check_split(self, batch_size: int, world_size: int, num_workers: int) -> None:
        """Warn if every loader process has to read a whole source."""
        readers = world_size * max(num_workers, 1)
        for index, source in enumerate(self.sources):
            if isinstance(source, InterleavedMixture):
                source.check_split(batch_size, world_size, num_workers)
            elif isinstance(source, SplitStream) and readers > 1:
                warnings.warn(
                    f"source {index} of the mixture can only be read in sequence: each of the "
                    f"{readers} loader processes reads all of its shards. Sources that are read by "
                    "index (overt.data.streams.TarSamples) avoid that",
                    stacklevel=2,
                )

    def _pattern(self, block: int, epoch: int, seed: int) -> _Pattern:
        first = block * PATTERN_LENGTH
        before = _counts_before(first, self.counts)
        after = _counts_before(min(first + PATTERN_LENGTH, len(self)), self.counts)
        block_counts = [end - start for start, end in zip(before, after, strict=True)]
        sources = np.repeat(np.arange(len(block_counts)), block_counts)
        np.random.default_rng(random_stream(seed, epoch, PATTERN, block)).shuffle(sources)
        preceding = np.empty(len(sources), np.int64)
        for index, (start, end) in enumerate(zip(before, after, strict=True)):
            preceding[sources == index] = np.arange(start, end)
        return _Pattern(sources, preceding)


class _Pattern(NamedTuple):
    """The sources of some consecutive positions."""

    sources: NDArray[np.int64]  # (positions,)
    preceding: NDArray[np.int64]  # (positions,) samples that the source gave before in this epoch


@lru_cache(maxsize=64)
def _seed_of_source(seed: int, number: int) -> int:
    """Return a seed for one source: sources of the same length must not have the same order."""
    state = np.random.SeedSequence(seed, spawn_key=(PATTERN, number)).generate_state(1, np.uint64)
    return int(state[0])


def _counts_before(position: int, counts: Sequence[int]) -> list[int]:
    """Return how many samples each source provides before a position, spread evenly.

    Sample j of a source with n samples is due at (j + 1/2) / n of the epoch; the counts are those
    of the first `position` samples in that order. So no count ever decreases, and at the end they
    are `counts`.
    """
    total = sum(counts)
    # Those due before `position` / total of the epoch: correct up to one per source.
    before = [max(0, -(-(2 * count * position - total) // (2 * total))) for count in counts]

    def due(number: int, sample: int) -> tuple[Fraction, int]:
        return Fraction(2 * sample + 1, 2 * counts[number]), number

    while (missing := position - sum(before)) != 0:
        if missing > 0:
            numbers = [number for number, count in enumerate(counts) if before[number] < count]
            before[min(numbers, key=lambda number: due(number, before[number]))] += 1
        else:
            numbers = [number for number, count in enumerate(before) if count]
            before[max(numbers, key=lambda number: due(number, before[number] - 1))] -= 1
    return before


class Mixture:
    """Several sources in proportion to their weights, by index.

    An epoch has as many samples as the sources together. Every source gets its fraction, rounded to
    the nearest sample, the same in every epoch, and is covered evenly: a source that provides as
    many samples as it has gives each once, one that provides half of them gives a random one of
    every two neighbors.
    """

    def __init__(self, sources: Sequence[SampleSource], weights: Sequence[float]) -> None:
        _check(sources, weights)
        self.sources = list(sources)
        # In floats, whose ties decide rounding: anything else would change the samples of old runs.
        self.counts = _apportion(sum(len(source) for source in sources), weights)
        _refuse_empty(self.counts, weights)
        # Indices up to ends[k] belong to the sources 0 to k.
        self.ends = list(accumulate(self.counts))

    def __len__(self) -> int:
        return self.ends[-1]

    def sample(self, index: int, rng: np.random.Generator) -> Any:
        """Return sample `index` of an epoch; depends only on the arguments."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number = bisect_right(self.ends, index)
        source, count = self.sources[number], self.counts[number]
        offset = index - (self.ends[number] - count)
        # A random sample of the `offset`-th of `count` equal segments of the source.
        stretch = offset * len(source) + int(rng.random() * len(source))
        return source.sample(stretch // count, rng)


def _check(sources: Sequence[SampleSource], weights: Sequence[float]) -> None:
    if not sources or len(sources) != len(weights):
        raise DataError(
            f"{len(sources)} sources with {len(weights)} weights; a mixture needs at least one "
            "source, and a weight for each"
        )
    for index, (source, weight) in enumerate(zip(sources, weights, strict=True)):
        if len(source) == 0:
            raise DataError(f"source {index} of the mixture has no samples; remove it")
        if not 0 < weight < math.inf:
            raise DataError(
                f"source {index} of the mixture has weight {weight}; expected a number above 0"
            )


def _refuse_empty(counts: Sequence[int], weights: Sequence[float]) -> None:
    if 0 in counts:
        number = list(counts).index(0)
        raise DataError(
            f"source {number} of the mixture has weight {weights[number]} of {sum(weights)}, "
            f"less than one of the {sum(counts)} samples of an epoch; raise it or remove the source"
        )


def _apportion(total: int, weights: Sequence[float | Fraction]) -> list[int]:
    """Return integers in proportion to the weights that add up to `total`: largest remainder."""
    scale = total / sum(weights)
    counts = [math.floor(weight * scale) for weight in weights]
    remainders = [count - weight * scale for count, weight in zip(counts, weights, strict=True)]
    largest = sorted(range(len(weights)), key=lambda number: remainders[number])
    for number in largest[: total - sum(counts)]:
        counts[number] += 1
    return counts
