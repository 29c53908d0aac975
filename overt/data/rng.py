"""The randomness of data: one generator for every sample.

Every random number is a function of run seed, epoch and sample index. So neither world size,
workers, accumulation nor a resume can change a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

# How numpy's SeedSequence mixes words of 32 bits; numpy guarantees that its streams do not change.
BITS = 2**32 - 1
START_IN, FACTOR_IN = 0x43B0D7E5, 0x931E8875
START_OUT, FACTOR_OUT = 0x8B51F9DD, 0x58F38DED
LEFT, RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
HALF = np.uint32(16)
POOL = 4  # words


def sample_rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Return the generator of sample `index` in `epoch`, independent of all others."""
    # As a spawn key, epoch and index cannot collide with the words of a large seed.
    words = np.random.SeedSequence(seed, spawn_key=(epoch, index))
    return np.random.Generator(np.random.PCG64(words))


def sample_rngs(seed: int, epoch: int, indices: Sequence[int]) -> list[np.random.Generator]:
    """Return `sample_rng` of several samples of an epoch, in a tenth of the time.

    Their common part is computed once, and the rest is vectorized.
    """
    if len(indices) == 1 or max(indices) > BITS:
        return [sample_rng(seed, epoch, index) for index in indices]
    pool, before, after = _mixed_so_far(seed, epoch)
    mixed = (np.array(indices, dtype=np.uint32)[:, None] ^ before) * after  # (samples, POOL)
    mixed = LEFT * pool - RIGHT * (mixed ^ mixed >> HALF)
    mixed = mixed ^ mixed >> HALF
    state = (np.concatenate([mixed, mixed], axis=1) ^ BEFORE_OUT) * AFTER_OUT
    state = (state ^ state >> HALF).astype("<u4").view("<u8")  # (samples, POOL)
    # numpy accepts any ISeedSequence; its annotations name a single class.
    generators = [np.random.PCG64(_Words(words)) for words in state]  # type: ignore[arg-type]
    return [np.random.Generator(generator) for generator in generators]


def uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Return the number that `rng.uniform(low, high)` would, in a quarter of the time."""
    return low + (high - low) * rng.random()


def cumulative(probabilities: Sequence[float]) -> np.ndarray:
    """Return the sums of probabilities that `choose` expects."""
    sums = np.cumsum(probabilities)
    return np.asarray(sums / sums[-1])


def choose(rng: np.random.Generator, sums: np.ndarray, size: int | None = None) -> Any:
    """Return the indices that `rng.choice(len(p), size, p=p)` would, in a tenth of the time."""
    return sums.searchsorted(rng.random(size), "right")


class _Words(ISeedSequence):
    """The words that a bit generator requests from a SeedSequence, precomputed."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = words

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> np.ndarray:
        return self.words


def _constants(start: int, factor: int, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the hash constants before and after the multiplication, from word `first` on."""
    numbers = range(first, first + count + 1)
    powers = [start * pow(factor, number, BITS + 1) & BITS for number in numbers]
    return np.array(powers[:-1], dtype=np.uint32), np.array(powers[1:], dtype=np.uint32)


BEFORE_OUT, AFTER_OUT = _constants(START_OUT, FACTOR_OUT, 0, 2 * POOL)


@lru_cache(maxsize=4)
def _mixed_so_far(seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return SeedSequence's pool with everything but the index mixed in, and its constants."""
    pool = np.random.SeedSequence(seed, spawn_key=(epoch,)).pool
    words = max(POOL, _words(seed)) + _words(epoch)
    # Each word of the pool was hashed once and mixed into the others; each further word into all.
    hashed = POOL + POOL * (POOL - 1) + POOL * (words - POOL)
    return pool, *_constants(START_IN, FACTOR_IN, hashed, POOL)


def _words(number: int) -> int:
    return max(1, -(-int(number).bit_length() // 32))
