"""Where the randomness of the data side comes from: one generator for every sample.

Every draw is a function of run seed, epoch and sample index. So neither the number of processes and
workers, nor accumulation, nor a resume can change what a sample looks like.
"""

from __future__ import annotations

import numpy as np


def sample_rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The generator of sample `index` in `epoch`; independent of that of any other sample."""
    # As a spawn key epoch and index cannot run into the words of a large seed.
    words = np.random.SeedSequence(seed, spawn_key=(epoch, index))
    # What `default_rng` makes of it, in half the time: every sample of every epoch pays for this.
    return np.random.Generator(np.random.PCG64(words))
