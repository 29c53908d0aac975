"""A strict tar reader: members with their offsets, grouped into samples by name.

ustar, pax and GNU long names. Content is never executed or extracted. Python's tarfile treats a
damaged header as the end of the archive, so samples would be missing silently: here it is a
DataError with shard and offset.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from overt.errors import DataError

BLOCK = 512
LONGEST_NAME = 2**20  # bytes of an extended header; more is damage
LONGEST_PADDING = 2**20  # zeros after the end mark; writers pad to 10 KiB, some to more
# The key is what precedes the first dot of the last component, the suffix is the rest. Names
# without a key (.DS_Store, ._000.jpg) or without a suffix (README) belong to no sample.
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)
_DIRECTORIES = (tarfile.DIRTYPE,)
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)


class Member(NamedTuple):
    """A file in a tar file."""

    name: str
    offset: int  # of its content
    size: int


@dataclass(frozen=True)
class RawSample:
    """The members of one key, by suffix."""

    key: str
    shard: str
    members: dict[str, Member] = field(default_factory=dict)
    content: dict[str, bytes] = field(default_factory=dict)  # of those that were read


class ShardReader:
    """Reads a file forward and tracks its offset."""

    def __init__(
        self, file: BinaryIO, shard: str, size: int | None = None, offset: int = 0
    ) -> None:
        """`size` of a seekable file: unused content is skipped without reading."""
        self.file, self.shard, self.size, self.offset = file, shard, size, offset

    def fail(self, offset: int, problem: str) -> DataError:
        return DataError(f"{self.shard}, byte {offset}: {problem}; copy or write the shard again")

    def read_up_to(self, size: int) -> bytes:
        """Return the next bytes, fewer only at the end of the file."""
        chunks, left = [], size
        while left:
            try:
                chunk = self.file.read(min(left, 2**24))
            except (OSError, EOFError, zlib.error) as error:
                raise self.fail(self.offset, f"cannot be read ({error})") from error
            if not chunk:
                break
            chunks.append(chunk)
            left -= len(chunk)
            self.offset += len(chunk)
        return b"".join(chunks)

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        start = self.offset
        content = self.read_up_to(size)
        if len(content) < size:
            raise self.fail(start, f"{size} bytes expected, but the file ends after {len(content)}")
        return content

    def skip_to(self, offset: int) -> None:
        """Move forward."""
        if self.size is not None and offset != self.offset:
            if offset > self.size:
                raise self.fail(
                    self.offset, f"a member up to byte {offset}, but the file ends at {self.size}"
                )
            self.file.seek(offset)
            self.offset = offset
        while self.offset < offset:
            self.read(min(offset - self.offset, 2**20))


def walk(reader: ShardReader) -> Iterator[Member]:
    """Yield the files of an archive; read the content before requesting the next one."""
    extended: dict[str, str] = {}  # what a pax or GNU header says about the member that follows
    while True:
        start = reader.offset
        block = reader.read_up_to(BLOCK)
        if len(block) < BLOCK:
            raise reader.fail(start, "the archive ends without its end mark: it is truncated")
        if not any(block):
            return _check_end(reader, start)
        header = parse_header(block)
        if header is None:
            raise reader.fail(start, "not a valid tar header: damaged, or not a tar file")
        size = _number(extended.get("size"), header.size)
        if size < 0:
            raise reader.fail(start, f"a member of {size} bytes")
        end = reader.offset + -(-size // BLOCK) * BLOCK
        if header.type in (*_EXTENDED, tarfile.GNUTYPE_LONGNAME):
            if size > LONGEST_NAME:
                raise reader.fail(start, f"an extended header of {size} bytes")
            content = reader.read(size)
            if header.type in _EXTENDED:
                extended |= _pax_records(reader, start, content)
            else:
                extended["path"] = content.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
        elif header.type in (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK):
            pass  # remarks on the archive, the target of a link
        else:
            name = extended.get("path", header.name)
            sparse = any(key.startswith("GNU.sparse") for key in extended)
            if header.type in _FILES and not sparse:
                yield Member(name, reader.offset, size)
            elif header.type not in _DIRECTORIES:
                raise DataError(
                    f"{reader.shard}, byte {start}: {name} is a link, a sparse file or a device; "
                    "write the shard with regular files (tar --dereference --hard-dereference)"
                )
            extended = {}
        reader.skip_to(end)


def parse_header(block: bytes) -> tarfile.TarInfo | None:
    """Return the fields of a header block, or None if its checksum or a number is wrong."""
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return None


def _check_end(reader: ShardReader, start: int) -> None:
    """Reject an archive that has more than padding after its end mark."""
    remainder = reader.read_up_to(LONGEST_PADDING + 1)
    if len(remainder) > LONGEST_PADDING or any(remainder):
        raise reader.fail(
            start, "the archive ends here, but more follows: damaged, or several in one file"
        )


def _number(text: str | None, otherwise: int) -> int:
    if text is None:
        return otherwise
    return int(text) if text.isascii() and text.isdigit() else -1


def _pax_records(reader: ShardReader, start: int, content: bytes) -> dict[str, str]:
    """Return the records `LENGTH KEY=VALUE\\n` of a pax header."""
    records = {}
    while content:
        match = re.match(rb"(\d{1,7}) ", content)
        length = int(match[1]) if match else 0
        key, equals, value = content[match.end() if match else 0 : length - 1].partition(b"=")
        cut = key == b"path" and b"\0" in value
        if not equals or cut or content[length - 1 : length] != b"\n":
            raise reader.fail(start, "not a valid pax header")
        records[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        content = content[length:]
    return records


def read_samples(reader: ShardReader, reads: Callable[[str], bool]) -> Iterator[RawSample]:
    """Yield the samples of a shard in the layout of WebDataset: members of a key are adjacent.

    The content of a member is read if `reads(suffix)` is true.
    """
    sample: RawSample | None = None
    keys: set[str] = set()
    for member in walk(reader):
        match = _NAME.fullmatch(member.name)
        if match is None or match[1].rpartition("/")[2].startswith("__"):
            continue
        key, suffix = match[1], match[2].lower()
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            if key in keys:
                raise DataError(
                    f"{reader.shard}, byte {member.offset}: the sample {key} appears again; "
                    "members of a sample must be neighbors (tar --sort=name)"
                )
            keys.add(key)
            sample = RawSample(key, reader.shard)
        if suffix in sample.members:
            raise DataError(
                f"{reader.shard}, byte {member.offset}: the sample {key} has a second member "
                f"{suffix!r}; write it once"
            )
        sample.members[suffix] = member
        if reads(suffix):
            sample.content[suffix] = reader.read(member.size)
    if sample is None:
        raise DataError(
            f"{reader.shard} has no samples; expected members named KEY.SUFFIX, such as 000000.jpg "
            "and 000000.json"
        )
    yield sample
