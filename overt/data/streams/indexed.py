"""Tar shards by index: the order of an epoch is computed, and a resume replays nothing."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from overt.data.permutation import STORED_UP_TO
from overt.data.recent import Recent
from overt.data.streams.fields import check_fields, check_names, decode_fields
from overt.data.streams.index import (
    ShardIndex,
    build_index,
    index_path,
    load_count,
    load_index,
    local_stamp,
    save_index,
)
from overt.data.streams.order import ShardOrder
from overt.data.streams.shards import INDEX_SUFFIX, Opener, expand_shards, open_shard, open_with
from overt.data.streams.tar import BLOCK, Member, ShardReader, parse_header
from overt.distributed import get_rank, get_world_size
from overt.errors import DataError

Transform = Callable[[dict[str, Any], np.random.Generator], Any]
# Larger values are in an extended header.
LARGEST_IN_HEADER = 8**11  # bytes
LONGEST_IN_HEADER = 99  # characters of a name
MOST_OPEN = 256  # files of a process; systems allow 1,024 and more


class TarSamples:
    """Samples of tar shards in the layout of WebDataset, as a source with its own order.

    Shards are shuffled, then samples within windows; see ShardOrder. World size, accumulation and
    resume work as with any indexed source. Each shard is indexed once: the index is stored next to
    it, in `index_folder`, or in memory if neither is writable.

    A sample is a dict of `fields` (None: all), `__key__` and `__shard__`; `transform(sample, rng)`
    turns it into what the recipe collates. `opener(shard)` returns a seekable binary file. With
    loader processes both must be picklable: module-level functions, or objects.
    """

    def __init__(
        self,
        shards: str | Sequence[str],
        *,
        fields: Sequence[str] | None = None,
        transform: Transform | None = None,
        window: int = 4096,
        lanes: int = 8,
        opener: Opener = open_shard,
        index_folder: Path | str | None = None,
    ) -> None:
        if not 1 <= window <= STORED_UP_TO:
            raise DataError(f"window={window}; expected 1 to {STORED_UP_TO} samples")
        if not 1 <= lanes <= 4096:
            raise DataError(f"lanes={lanes}; expected 1 to 4096")
        self.shards, self.transform = expand_shards(shards), transform
        self.fields = check_names(fields)
        self.window, self.lanes, self.opener = window, lanes, opener
        self.index_folder = None if index_folder is None else Path(index_folder)
        self._in_memory: dict[int, ShardIndex] = {}  # indexes that could not be written
        self.counts = self._count_all()  # (shards,) samples
        self._ends = np.cumsum(self.counts)
        # A lane reads within a window, which may span several shards and parts of two more.
        shards_in_window = -(-window * len(self.shards) // len(self)) + 2
        at_a_time = min(lanes * shards_in_window, MOST_OPEN)
        self._indexes: Recent[int, ShardIndex] = Recent(at_a_time)
        self._files: Recent[int, BinaryIO] = Recent(at_a_time, _close)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def order(self, epoch: int, seed: int) -> ShardOrder:
        """Return the order of an epoch, the same on every rank."""
        return ShardOrder(self.counts, epoch, seed, self.window, self.lanes)

    def sample(self, index: int, rng: np.random.Generator) -> Any:
        """Return sample `index`, counted over all shards."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number = int(np.searchsorted(self._ends, index, side="right"))
        within = index - int(self._ends[number] - self.counts[number])
        shard = self._indexes.get(number, lambda: self._load(number))
        key, name = shard.keys[within], self.shards[number]
        members = shard.members(within)
        check_fields(members, self.fields, key, name)
        if self.fields is not None:
            members = {field: members[field] for field in self.fields}
        sample = decode_fields(self._read(number, members), key, name)
        return sample if self.transform is None else self.transform(sample, rng)

    def _read(self, number: int, members: dict[str, Member]) -> dict[str, bytes]:
        """Return adjacent members of a shard, read at once and checked against the headers."""
        if not members:
            return {}
        shard = self.shards[number]
        first = min(member.offset for member in members.values()) - BLOCK
        last = max(member.offset + member.size for member in members.values())
        file = self._files.get(number, lambda: open_with(self.opener, shard))
        file.seek(first)
        read = memoryview(ShardReader(file, shard, offset=first).read(last - first))
        content = {}
        for suffix, member in members.items():
            start = member.offset - first
            _check_header(bytes(read[start - BLOCK : start]), member, shard)
            content[suffix] = bytes(read[start : start + member.size])
        return content

    def _count_all(self) -> NDArray[np.int64]:
        """Return the samples of each shard, from indexes; missing ones are built.

        Every rank starts at another shard, and uses what others have written meanwhile.
        """
        counts = np.zeros(len(self.shards), np.int64)
        begin = len(self.shards) * get_rank() // get_world_size()
        for number in (*range(begin, len(self.shards)), *range(begin)):
            counts[number] = self._count(number)
        return counts

    def _count(self, number: int) -> int:
        shard = self.shards[number]
        path = index_path(shard, self.index_folder)
        count = None if path is None else load_count(path, local_stamp(shard))
        if count is None:
            index = build_index(shard, self.opener)
            count = len(index)
            if path is None or not save_index(index, path):
                self._in_memory[number] = index
        return count

    def _load(self, number: int) -> ShardIndex:
        """Return the index of a shard; reject one that changed since the start."""
        if number in self._in_memory:
            return self._in_memory[number]
        shard = self.shards[number]
        path = index_path(shard, self.index_folder)
        index = None if path is None else load_index(path, local_stamp(shard))
        if index is None:
            index = build_index(shard, self.opener)
        if len(index) != self.counts[number]:
            raise DataError(
                f"{shard} has {len(index)} samples, but had {self.counts[number]} when training "
                "started; restart once it no longer changes"
            )
        return index


def _close(file: BinaryIO) -> None:
    file.close()


def _check_header(block: bytes, member: Member, shard: str) -> None:
    """Reject a header that does not match the member."""
    header = parse_header(block)
    if header is None or not _fits(header, member):
        raise DataError(
            f"{shard}, byte {member.offset - BLOCK}: not the header of {member.name}; the shard is "
            f"damaged, or was changed after it was indexed: remove its index (*{INDEX_SUFFIX})"
        )


def _fits(header: tarfile.TarInfo, member: Member) -> bool:
    """Return whether a header matches a member, as far as extended headers allow."""
    if header.size != member.size and member.size < LARGEST_IN_HEADER:
        return False
    is_long = len(member.name) > LONGEST_IN_HEADER or not member.name.isascii()
    return is_long or header.name.lower() == member.name.lower()
