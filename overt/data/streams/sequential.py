"""Tar shards read sequentially, for openers that cannot seek and for compressed shards."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, TypeVar

import numpy as np

from overt.data.permutation import LANE, SHARDS, permutation, random_stream
from overt.data.streams.fields import check_fields, check_names, decode_fields
from overt.data.streams.indexed import Transform
from overt.data.streams.shards import Opener, expand_shards, open_shard, open_with, unzipped
from overt.data.streams.tar import RawSample, ShardReader, read_samples
from overt.errors import ConfigError, DataError

Item = TypeVar("Item")


class TarStream:
    """Samples of tar shards in the layout of WebDataset, read from start to end.

    The shards of an epoch are shuffled and distributed over `lanes`, each with a shuffle buffer of
    `buffer` samples. Lanes alternate in blocks of `block` positions, so a sample follows from
    position, epoch and seed: any world size gives the same global batches, and a resume the same
    samples. A resume reads its lanes again from the start of the epoch, without decoding.

    An epoch has `samples` samples: the total in the shards is not known. A lane that runs out of
    shards starts again in another order; shards it does not reach are left to other epochs.
    """

    def __init__(
        self,
        shards: str | Sequence[str],
        *,
        samples: int,
        lanes: int,
        block: int = 1,
        buffer: int = 1000,
        fields: Sequence[str] | None = None,
        transform: Transform | None = None,
        opener: Opener = open_shard,
    ) -> None:
        self.shards, self.transform = expand_shards(shards), transform
        self.fields = check_names(fields)
        for name, value in {"samples": samples, "block": block, "buffer": buffer}.items():
            if value < 1:
                raise DataError(f"{name}={value}; expected 1 or more")
        if not 1 <= lanes <= len(self.shards):
            raise DataError(
                f"lanes={lanes}; expected 1 to {len(self.shards)}, a shard or more for each"
            )
        self.samples, self.lanes, self.block, self.buffer = samples, lanes, block, buffer
        self.opener = opener
        self._epoch, self._lanes = (-1, -1), dict[int, _Lane]()

    def __len__(self) -> int:
        return self.samples

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_epoch": (-1, -1), "_lanes": {}}  # files stay in their process

    def sample(self, index: int, rng: np.random.Generator) -> Any:
        """Return a sample of epoch 0 with seed 0; the engine uses `sample_at`."""
        return self.sample_at(position=index, epoch=0, seed=0, rng=rng)

    def sample_at(self, position: int, epoch: int, seed: int, rng: np.random.Generator) -> Any:
        """Return the sample at a position of an epoch; earlier samples of its lane are skipped."""
        if not 0 <= position < self.samples:
            raise IndexError(f"position {position} of {self.samples}")
        turn, within = divmod(position, self.block)
        row, number = divmod(turn, self.lanes)
        if self._epoch != (epoch, seed):
            for lane in self._lanes.values():
                lane.samples.close()
            self._lanes, self._epoch = {}, (epoch, seed)
        offset = row * self.block + within
        raw = self._lane_before(offset, number).read(offset)
        check_fields(raw.members, self.fields, raw.key, raw.shard)
        sample = decode_fields(raw.content, raw.key, raw.shard)
        return sample if self.transform is None else self.transform(sample, rng)

    def _lane_before(self, offset: int, number: int) -> _Lane:
        """Return a lane that has not passed an offset yet; otherwise read it again."""
        lane = self._lanes.get(number)
        if lane is None or lane.offset > offset:
            if lane is not None:
                lane.samples.close()
            lane = self._lanes[number] = _Lane(self._read_lane(number, *self._epoch))
        return lane

    def check_split(self, batch_size: int, world_size: int, num_workers: int) -> None:
        """Reject a split in which several loader processes would read the same lane."""
        if batch_size % self.block:
            raise ConfigError(
                f"a stream with block={self.block}, but training.batch_size={batch_size} samples "
                "per rank and micro-batch; use a multiple of the block"
            )
        blocks = batch_size // self.block
        if self.lanes % (world_size * blocks * max(num_workers, 1)) == 0:
            return
        raise ConfigError(
            f"a stream of {self.lanes} lanes, but {world_size} rank(s) x {max(num_workers, 1)} "
            f"loader process(es) x {blocks} block(s) of {self.block} in a micro-batch do not "
            "divide them, and lanes would be read several times; "
            + self._remedy(blocks, world_size)
        )

    def _remedy(self, blocks: int, world_size: int) -> str:
        """Return which splits the lanes allow."""
        workers = _divisors(self.lanes, world_size * blocks)
        sizes = _divisors(self.lanes, blocks)
        if workers:
            return f"use training.num_workers={' or '.join(map(str, workers))}"
        if sizes:
            return f"use {' or '.join(map(str, sizes))} rank(s)"
        return f"use a larger block, or lanes that are a multiple of {world_size * blocks}"

    def _read_lane(self, number: int, epoch: int, seed: int) -> Generator[RawSample, None, None]:
        """Yield the samples of a lane, indefinitely."""
        count = len(self.shards)
        shuffled = permutation(count, random_stream(seed, epoch, SHARDS))[:count]
        lane_shards = [self.shards[int(shard)] for shard in shuffled[number :: self.lanes]]
        rng = np.random.default_rng(random_stream(seed, epoch, LANE, number))
        while True:
            yield from shuffle(self._read_shards(lane_shards), self.buffer, rng)
            lane_shards = [lane_shards[shard] for shard in rng.permutation(len(lane_shards))]

    def _read_shards(self, shards: Sequence[str]) -> Iterator[RawSample]:
        fields = self.fields
        for shard in shards:
            with closing(open_with(self.opener, shard)) as file:
                yield from read_samples(
                    ShardReader(unzipped(file, shard), shard),
                    lambda suffix: fields is None or suffix in fields,
                )


class _Lane:
    """A lane that is being read."""

    def __init__(self, samples: Generator[RawSample, None, None]) -> None:
        self.samples, self.offset = samples, 0

    def read(self, offset: int) -> RawSample:
        """Return the sample at an offset, which is not before that of the next one."""
        sample = None
        while self.offset <= offset:
            try:
                sample = next(self.samples)
            except BaseException:
                self.offset = sys.maxsize  # the generator has ended; the next one starts again
                raise
            self.offset += 1
        assert sample is not None
        return sample


def shuffle(items: Iterator[Item], size: int, rng: np.random.Generator) -> Iterator[Item]:
    """Yield the items in random order, from a buffer of `size` that is kept full."""
    held: list[Item] = []
    for item in items:
        if len(held) < size:
            held.append(item)
            continue
        slot = int(rng.integers(size))
        yield held[slot]
        held[slot] = item
    for slot in rng.permutation(len(held)):
        yield held[slot]


def _divisors(number: int, unit: int) -> list[int]:
    """Return what, times a unit, divides a number."""
    return [factor for factor in range(1, number + 1) if number % (factor * unit) == 0]
