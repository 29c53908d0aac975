"""The sample order: permutations that follow from a key, stored or computed.

Beyond 2^20 samples, nothing here grows with their number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from overt.data.source import EpochOrder, OrderedSource, SampleSource, SampleStream
from overt.errors import DataError

STORED_UP_TO = 2**20  # samples; 8 MB and a few milliseconds

# Purposes of a random stream of (seed, epoch): the first words of its spawn key.
EPOCH, SHARDS, WINDOW, LANE, PATTERN = 1, 2, 3, 4, 5

ROUNDS = 6  # four are enough for a permutation that looks random; six leave a margin
COMPUTED_AT_ONCE = 2**13  # positions; NumPy's cost per call is spread over them


def random_stream(seed: int, epoch: int, *purpose: int) -> np.random.SeedSequence:
    """Return the stream of an epoch for one purpose, independent of those of the samples."""
    return np.random.SeedSequence([seed, epoch], spawn_key=purpose)


def epoch_order(seed: int, epoch: int, length: int) -> EpochOrder:
    """Return the order of an epoch: a permutation that follows from seed and epoch.

    Up to 2^20 samples it is NumPy's permutation, and must stay so: existing runs and checkpoints
    continue with the same samples. Longer ones are computed on access, so a source of 10^12 samples
    starts at once.
    """
    return permutation(length, random_stream(seed, epoch, EPOCH))


def permutation(length: int, stream: np.random.SeedSequence) -> EpochOrder:
    """Return a permutation of range(length), stored if it is short."""
    if length <= STORED_UP_TO:
        return np.random.default_rng(stream).permutation(length)
    return KeyedPermutation(length, stream)


class KeyedPermutation:
    """A permutation of range(length), computed slice by slice.

    A Feistel network permutes the integers of the required bit width; a value outside the range is
    permuted again until it falls inside, less than twice on average.
    """

    def __init__(self, length: int, stream: np.random.SeedSequence) -> None:
        self.length = length
        self.keys = stream.generate_state(ROUNDS, np.uint64)
        bits = max((length - 1).bit_length(), 2)
        self.low_bits = np.uint64(bits // 2)
        self.low_mask = np.uint64(2 ** (bits // 2) - 1)
        self.high_mask = np.uint64(2 ** (bits - bits // 2) - 1)
        self._first, self._computed = 0, np.empty(0, np.int64)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, positions: slice, /) -> NDArray[np.int64]:
        first, last, step = positions.indices(self.length)
        if step < 1:
            raise IndexError(f"step {step} of a slice of an order; expected 1 or more")
        if not self._first <= first <= last <= self._first + len(self._computed):
            # Training will request the next slice soon.
            end = min(max(last, first + COMPUTED_AT_ONCE), self.length)
            self._first, self._computed = first, self.at(np.arange(first, end, dtype=np.uint64))
        return self._computed[first - self._first : last - self._first : step]

    def at(self, positions: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the values at these positions, each below the length."""
        numbers = self._permuted(positions)
        outside = np.flatnonzero(numbers >= self.length)
        while outside.size:
            numbers[outside] = self._permuted(numbers[outside])
            outside = outside[numbers[outside] >= self.length]
        return numbers.astype(np.int64)

    def _permuted(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        high, low = numbers >> self.low_bits, numbers & self.low_mask
        for key in self.keys.reshape(-1, 2):
            # Each half is changed by a function of the other, so both steps are invertible.
            high = high ^ (_hashed(low + key[0]) & self.high_mask)
            low = low ^ (_hashed(high + key[1]) & self.low_mask)
        return high << self.low_bits | low


def _hashed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64 bits so that each depends on all (the finalizer of SplitMix64)."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)


def order_of(source: SampleSource, seed: int, epoch: int) -> EpochOrder:
    """Return the order of an epoch: the source's own, a stream's positions, or a permutation."""
    if isinstance(source, SampleStream):
        return range(len(source))
    if not (isinstance(source, OrderedSource) and callable(source.order)):
        return epoch_order(seed, epoch, len(source))
    order = source.order(epoch=epoch, seed=seed)
    if len(order) != len(source):
        raise DataError(
            f"{type(source).__qualname__}.order(epoch={epoch}) has {len(order)} positions, but the "
            f"source has {len(source)} samples; an order gives an index for each of them"
        )
    return order
