"""Index of the samples of a tar file: built once, stored next to it as a small JSON file.

The first line has size, time and number of samples, so a data set of many shards starts without
reading more. An index is valid as long as size and time of its shard do not change.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.data.streams.shards import GZIP, INDEX_SUFFIX, Opener, open_with
from overt.data.streams.tar import Member, ShardReader, read_samples
from overt.errors import DataError

FORMAT = 1


class Stamp(NamedTuple):
    """Identifies the version of a shard that was indexed."""

    size: int
    mtime_ns: int | None  # None where the opener does not say


@dataclass(frozen=True)
class ShardIndex:
    """The samples of a shard, in the order of the file."""

    stamp: Stamp
    keys: Sequence[str]
    suffixes: Sequence[str]  # all that occur
    ends: NDArray[np.int64]  # (samples,) members up to and including this sample
    kinds: NDArray[np.int64]  # (members,) index of the suffix
    offsets: NDArray[np.int64]  # (members,) of the content
    sizes: NDArray[np.int64]  # (members,) bytes

    def __len__(self) -> int:
        return len(self.keys)

    def members(self, number: int) -> dict[str, Member]:
        """Return the members of a sample by suffix, in the order of the file."""
        first = int(self.ends[number - 1]) if number else 0
        members = {}
        for row in range(first, int(self.ends[number])):
            suffix = self.suffixes[int(self.kinds[row])]
            name = f"{self.keys[number]}.{suffix}"
            members[suffix] = Member(name, int(self.offsets[row]), int(self.sizes[row]))
        return members


def index_path(shard: str, folder: Path | None) -> Path | None:
    """Return the path of a shard's index; None: it is kept in memory."""
    if folder is None:
        return Path(shard + INDEX_SUFFIX) if local_stamp(shard) else None
    # Shards of several folders may have the same name.
    mark = zlib.crc32(os.fsencode(os.path.abspath(shard) if local_stamp(shard) else shard))
    return folder / f"{shard.rpartition('/')[2]}.{mark:08x}{INDEX_SUFFIX}"


def build_index(shard: str, opener: Opener) -> ShardIndex:
    """Read the headers of a shard; content is skipped."""
    stamp = local_stamp(shard)  # before reading: a file that changes meanwhile is indexed again
    with open_with(opener, shard) as file:
        if not file.seekable():
            raise DataError(
                f"{shard} cannot be read by index: its opener gives a file that cannot seek; read "
                "it in sequence with overt.data.streams.TarStream"
            )
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if file.read(2) == GZIP:
            raise DataError(
                f"{shard} is compressed and cannot be read by index; gunzip it, or read it in "
                "sequence with overt.data.streams.TarStream"
            )
        file.seek(0)
        samples = list(read_samples(ShardReader(file, shard, size), lambda suffix: False))
    suffixes = sorted({suffix for sample in samples for suffix in sample.members})
    numbers = {suffix: index for index, suffix in enumerate(suffixes)}
    rows = [
        (numbers[suffix], member.offset, member.size)
        for sample in samples
        for suffix, member in sample.members.items()
    ]
    kinds, offsets, sizes = np.array(rows, np.int64).T
    ends = np.cumsum([len(sample.members) for sample in samples])
    keys = [sample.key for sample in samples]
    return ShardIndex(stamp or Stamp(size, None), keys, suffixes, ends, kinds, offsets, sizes)


def local_stamp(shard: str) -> Stamp | None:
    """Return size and time of a local file; None for anything else an opener takes."""
    try:
        stat = os.stat(shard)
    except OSError:
        return None
    return Stamp(stat.st_size, stat.st_mtime_ns)


def save_index(index: ShardIndex, path: Path) -> bool:
    """Write an index atomically; return False if the folder is not writable."""
    head = {"overt_index": FORMAT, **index.stamp._asdict(), "samples": len(index)}
    body = {
        "keys": list(index.keys),
        "suffixes": list(index.suffixes),
        "ends": index.ends.tolist(),
        "kinds": index.kinds.tolist(),
        "offsets": index.offsets.tolist(),
        "sizes": index.sizes.tolist(),
    }
    text = f"{json.dumps(head)[:-1]},\n{json.dumps(body)[1:]}\n"
    # Several ranks, on several machines, may write the same index.
    unfinished = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text)
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        return False
    return True


def load_count(path: Path, stamp: Stamp | None) -> int | None:
    """Return the number of samples from the first line of an index; None if it is outdated."""
    try:
        with path.open() as file:
            head = json.loads(file.readline(1000).rstrip().removesuffix(",") + "}")
    except (OSError, ValueError):
        return None
    return _count(head, stamp)


def load_index(path: Path, stamp: Stamp | None) -> ShardIndex | None:
    """Return a stored index; None if it does not match its shard."""
    try:
        content = json.loads(path.read_text())
        count = _count(content, stamp)
        if count is None:
            return None
        arrays = [
            np.array(content[name], np.int64) for name in ("ends", "kinds", "offsets", "sizes")
        ]
        index = ShardIndex(
            Stamp(content["size"], content["mtime_ns"]),
            [str(key) for key in content["keys"]],
            [str(suffix) for suffix in content["suffixes"]],
            *arrays,
        )
        return index if _is_whole(index, count) else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _count(head: Any, stamp: Stamp | None) -> int | None:
    if not isinstance(head, dict) or head.get("overt_index") != FORMAT:
        return None
    if stamp is not None and (head.get("size"), head.get("mtime_ns")) != stamp:
        return None
    count = head.get("samples")
    return count if isinstance(count, int) and count > 0 else None


def _is_whole(index: ShardIndex, count: int) -> bool:
    """Return whether a stored index can be used without checking each number again."""
    ends, members = index.ends, len(index.kinds)
    return (
        {array.ndim for array in (ends, index.kinds, index.offsets, index.sizes)} == {1}
        and len(index.keys) == count == len(ends)
        and members == len(index.offsets) == len(index.sizes) == ends[-1]
        and bool((np.diff(ends, prepend=0) > 0).all())
        and 0 <= index.kinds.min() <= index.kinds.max() < len(index.suffixes)
        and index.offsets.min() >= 0
        and index.sizes.min() >= 0
        and bool((index.offsets + index.sizes <= index.stamp.size).all())
    )
