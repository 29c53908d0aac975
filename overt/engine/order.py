"""The order of the data: which samples make up step k, on which rank.

Nothing is iterated to: order and position are computed from (seed, epoch, offset), so a resumed run
starts at once, and neither ranks, workers nor accumulation change what a step holds. Nothing is
held for each sample of a source either, so that it may be of any length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from overt.config.batch import BatchPlan
from overt.data.permutation import order_of
from overt.errors import DataError
from overt.recipe import SampleSource


@dataclass(frozen=True)
class SampleId:
    """What a sampler asks of a loader process; enough to read the sample again at any time."""

    epoch: int
    index: int  # of a stream: the position in its epoch
    is_padding: bool = False


class Position(NamedTuple):
    """How far training has come: samples of `epoch` already consumed, over all ranks."""

    epoch: int
    offset: int


START = Position(0, 0)


class StepSampler(Sampler[list[SampleId]]):
    """Yields the samples of this rank's next micro-batch forever, from a position onwards.

    The global batch at offset o is order[o : o + G]. Micro-batch m of rank r is its
    (m x W + r)-th slice, so the whole is the same for every split of G.
    """

    def __init__(
        self,
        source: SampleSource,
        seed: int,
        plan: BatchPlan,
        rank: int,
        drop_last: bool,
        start: Position,
    ) -> None:
        self.source, self.length = source, len(source)
        self.seed, self.plan, self.rank = seed, plan, rank
        self.drop_last, self.start = drop_last, start

    def __iter__(self) -> Iterator[list[SampleId]]:
        position = normalized(self.start, self.length, self.plan, self.drop_last)
        while True:
            epoch = position.epoch
            order = order_of(self.source, self.seed, epoch)
            while position.epoch == epoch:
                end = position.offset + self.plan.global_batch_size
                global_batch = self._checked(order[position.offset : end], position)
                for micro in range(micro_batches(len(global_batch), self.plan)):
                    first = (micro * self.plan.world_size + self.rank) * self.plan.batch_size
                    micro_batch = global_batch[first : first + self.plan.batch_size]
                    if len(micro_batch):
                        yield [SampleId(epoch, int(index)) for index in micro_batch]
                    else:  # a short last batch leaves nothing for this rank: any sample pads
                        yield [SampleId(epoch, int(global_batch[0]), is_padding=True)]
                position = normalized(
                    Position(epoch, position.offset + len(global_batch)),
                    self.length,
                    self.plan,
                    self.drop_last,
                )

    def _checked(self, own_order: Any, position: Position) -> NDArray[Any]:
        """Return the indices of a global batch; refuse those of a wrong order of the source."""
        indices: NDArray[Any] = np.asarray(own_order)
        expected = min(self.plan.global_batch_size, self.length - position.offset)
        is_whole = indices.shape == (expected,) and indices.dtype.kind in "iu"
        if not is_whole or indices.min() < 0 or indices.max() >= self.length:
            raise DataError(
                f"{type(self.source).__qualname__}.order(epoch={position.epoch}) gives "
                f"{_in_short(indices)} for the positions {position.offset} to "
                f"{position.offset + expected - 1}; expected {expected} integers from 0 to "
                f"{self.length - 1}"
            )
        return indices


def _in_short(indices: NDArray[Any]) -> str:
    return np.array2string(indices, threshold=8, edgeitems=3, separator=", ")


def micro_batches(samples: int, plan: BatchPlan) -> int:
    """Return the number of micro-batches of a global batch; the same on every rank."""
    return -(-samples // (plan.batch_size * plan.world_size))


def normalized(position: Position, length: int, plan: BatchPlan, drop_last: bool) -> Position:
    """Return the position, with the end of one epoch as the start of the next."""
    left = length - position.offset
    if left <= 0 or (drop_last and left < plan.global_batch_size):
        return Position(position.epoch + 1, 0)
    return position
