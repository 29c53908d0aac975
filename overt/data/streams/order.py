"""The order of an epoch over shards: nearly sequential, yet computed position by position."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from overt.data.permutation import SHARDS, WINDOW, permutation, random_stream
from overt.data.recent import Recent


class ShardOrder:
    """Shuffled shards, concatenated, shuffled within windows, read in several lanes.

    Lane l of L reads the l-th of L equal segments of that sequence, and the lanes alternate: a
    batch has samples of L distant shards, while each lane reads its own nearly sequentially. Memory
    grows with the number of shards and the window, not with the number of samples.
    """

    def __init__(
        self, counts: NDArray[np.int64], epoch: int, seed: int, window: int, lanes: int
    ) -> None:
        """`counts`: samples of each shard."""
        self.epoch, self.seed, self.window, self.lanes = epoch, seed, window, lanes
        self.shards = permutation(len(counts), random_stream(seed, epoch, SHARDS))[: len(counts)]
        self.ends = np.cumsum(counts[self.shards])  # (shards,) of the sequence, as shuffled
        # First index of a shard, less its start in the sequence.
        self.shifts = (np.cumsum(counts) - counts)[self.shards] - (self.ends - counts[self.shards])
        self.length = int(self.ends[-1])
        # Windows start at another offset in each epoch; otherwise samples across a border would
        # never mix.
        rng = np.random.default_rng(random_stream(seed, epoch, WINDOW))
        self.phase = int(rng.integers(window))
        self._windows: Recent[int, NDArray[np.int64]] = Recent(2 * lanes + 2)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, positions: slice, /) -> NDArray[np.int64]:
        requested = np.arange(*positions.indices(self.length), dtype=np.int64)
        sequence = self._in_lanes(requested)
        windows, owners = np.unique((sequence + self.phase) // self.window, return_inverse=True)
        for index, window in enumerate(windows):
            first, shuffled = self._window(int(window))
            in_window = owners == index
            sequence[in_window] = first + shuffled[sequence[in_window] - first]
        indices: NDArray[np.int64] = (
            sequence + self.shifts[np.searchsorted(self.ends, sequence, side="right")]
        )
        return indices

    def _in_lanes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where in the sequence each position reads; the remainder comes last."""
        rows = self.length // self.lanes
        in_lane = positions % self.lanes * rows + positions // self.lanes
        return np.where(positions < rows * self.lanes, in_lane, positions)

    def _window(self, number: int) -> tuple[int, NDArray[np.int64]]:
        """Return the first position of a window, and the shuffled offsets within."""
        first = max(number * self.window - self.phase, 0)
        last = min((number + 1) * self.window - self.phase, self.length)

        def shuffle() -> NDArray[np.int64]:
            stream = random_stream(self.seed, self.epoch, WINDOW, number)
            shuffled: NDArray[np.int64] = permutation(last - first, stream)[: last - first]
            return shuffled

        return first, self._windows.get(number, shuffle)
