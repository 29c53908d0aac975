"""How much a file claims to hold, checked by its headers before anything of it is unpacked.

A few bytes can claim terabytes: a sparse file, the header of an array, a compressed archive. Every
reader of arrays, archives and whole files asks here first. Imports no torch.
"""

from __future__ import annotations

import ast
import io
import math
import os
import re
import struct
import tokenize
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from overt.errors import DataError

UNSUSPICIOUS = 1 << 30  # bytes; smaller claims are read without further checks
LARGEST_RATIO = 200  # of bytes claimed to bytes on disk, beyond that
_DROPPED_AT_ONCE = 1 << 24  # bytes
_MAGIC = b"\x93NUMPY"
LARGEST_HEADER = 1 << 16  # bytes of an array's header
ADVICE = "get it again from its source, or create it again"


def open_arrays(path: Path, mapped: bool = False) -> Any:
    """Open an .npy or .npz file as `np.load` does, refused where it is a bomb; runs no pickle.

    `mapped`: an .npy file is not read but mapped, so it may be larger than memory.
    """
    check_arrays(path, mapped)
    return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)


def check_arrays(path: Path, mapped: bool = False) -> None:
    """Refuse an .npy or .npz file that claims more than it holds, or than fits into memory.

    Any other file is left to its reader, which knows what should be there.
    """
    if not path.is_file():
        return
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                check_archive(archive, path)
                for entry in archive.infolist():
                    # macOS adds files of attributes to archives: ._NAME
                    is_hidden = entry.filename.rpartition("/")[2].startswith("._")
                    if entry.filename.endswith(".npy") and not is_hidden:
                        name = f"{path}, {entry.filename}"
                        with archive.open(entry) as member:
                            _check_member(member, name)
                            _check_header(member, entry.file_size, name)
        # Damaged, encrypted, or packed by a method that Python does not have.
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError):
            return
        return
    size = path.stat().st_size
    with path.open("rb") as file:
        claimed = _check_header(file, size, str(path))
    if not mapped and claimed:
        _check_claim(claimed, _on_disk(path), str(path))


def check_archive(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse a zip archive that would unpack to far more than a file of data has."""
    claimed = sum(entry.file_size for entry in archive.infolist())
    packed = sum(entry.compress_size for entry in archive.infolist())
    _check_claim(claimed, min(packed, _on_disk(path)), str(path))


def check_file(path: Path) -> None:
    """Refuse a file that is sparse or larger than memory; none at all is left to its reader."""
    if path.is_file():
        _check_claim(path.stat().st_size, _on_disk(path), str(path))


def check_unpacked(claimed: int, path: Path) -> None:
    """Refuse a file whose header says that it unpacks to `claimed` bytes, far more than it has."""
    _check_claim(claimed, _on_disk(path), str(path))


def read_file(path: Path) -> bytes:
    """Return the bytes of a file, refused where it is sparse or larger than memory."""
    check_file(path)
    return path.read_bytes()


def unpack_gzip(content: bytes, expected: int, name: str) -> bytes:
    """Return the first `expected` bytes of gzip data, refused where that is a bomb.

    The stream that holds the last of them is unpacked to its end, where its checksum is.
    """
    _check_claim(expected, len(content), name)
    parts: list[bytes] = []
    missing = expected
    while missing > 0 and content:
        stream = zlib.decompressobj(wbits=31)
        parts.append(_unpack(stream, content, missing))
        missing -= len(parts[-1])
        _check_end(stream, name)
        content = stream.unused_data  # a file may hold several streams, one after the other
    return b"".join(parts)


def _check_end(stream: zlib._Decompress, name: str) -> None:
    """Unpack the rest of a stream without keeping it; zlib compares the checksum at the end."""
    surplus = 0
    while not stream.eof:
        content = stream.unconsumed_tail
        part = _unpack(stream, content, _DROPPED_AT_ONCE)
        surplus += len(part)
        if surplus > UNSUSPICIOUS:
            raise DataError(
                f"{name} unpacks to {_gigabytes(surplus)} more than its header says: it is "
                f"damaged, or a bomb; {ADVICE}"
            )
        if not part and not stream.eof and len(stream.unconsumed_tail) == len(content):
            raise EOFError("the gzip data end early: the file is truncated")


def _unpack(stream: zlib._Decompress, content: bytes, at_most: int) -> bytes:
    try:
        return stream.decompress(content, at_most)
    except zlib.error as error:
        if "incorrect data check" in str(error):
            raise zlib.error("CRC check failed") from error
        raise


def _check_claim(claimed: int, held: int, name: str) -> None:
    if claimed <= UNSUSPICIOUS:
        return
    if claimed > LARGEST_RATIO * max(held, 1):
        raise DataError(
            f"{name} claims {_gigabytes(claimed)} but takes {_gigabytes(held)} on disk: it is "
            f"sparse, damaged, or a bomb; {ADVICE}"
        )
    if claimed > _memory() // 2:
        raise DataError(
            f"{name} holds {_gigabytes(claimed)}, more than half of this machine's memory "
            f"({_gigabytes(_memory())}); split it, or use a machine with more"
        )


def _check_member(member: Any, name: str) -> None:
    """Refuse a file of an archive that is called an array and is none: numpy returns its bytes."""
    try:
        start = member.peek(len(_MAGIC))[: len(_MAGIC)]
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile):  # damaged, as its reader will find
        return
    if start != _MAGIC:
        raise DataError(f"{name} is not an array in NumPy's format; {ADVICE}")


def _check_header(file: IO[bytes], size: int, name: str) -> int:
    """Return how many bytes the header of an .npy file claims; 0 where that cannot be told."""
    try:
        described = _described(file, name)
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile):  # damaged, as its reader will find
        described = None
    if described is None:
        return 0
    shape, kind = described
    claimed = math.prod(shape) * kind.itemsize
    if not kind.hasobject and claimed > size:
        raise DataError(
            f"{name}: its header claims an array {shape} of {kind}, {_gigabytes(claimed)}, but "
            f"there are {size:,} bytes; {ADVICE}"
        )
    return claimed


def _described(file: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Return shape and type that the header of an .npy file names; None for any other file."""
    start = file.read(12)
    if not start.startswith(_MAGIC) or len(start) < 12:
        return None
    wide = start[6] > 1
    length = struct.unpack("<I", start[8:12])[0] if wide else struct.unpack("<H", start[8:10])[0]
    text = b"" if wide else start[10:]
    if length > LARGEST_HEADER:
        return None  # numpy refuses it as well
    header = (text + file.read(length - len(text))).decode("latin1")
    try:
        values = ast.literal_eval(header.strip())
        shape = tuple(int(extent) for extent in values["shape"])
        if not isinstance(values["descr"], str) or min(shape, default=0) < 0:
            return None
        return shape, np.dtype(values["descr"])
    except SyntaxError:
        _check_tokens(header, name)
        return None
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError):
        return None


def _check_tokens(header: str, name: str) -> None:
    """Refuse a header that ends early.

    numpy retries it as one of Python 2, and stops with an error that is neither an OSError nor a
    ValueError.
    """
    try:
        for _ in tokenize.generate_tokens(io.StringIO(header).readline):
            continue
    except (tokenize.TokenError, SyntaxError) as error:
        raise DataError(
            f"{name}: the header of the array is damaged ({error.args[0]}); {ADVICE}"
        ) from error


def _on_disk(path: Path) -> int:
    """Return how many bytes a file takes; its size where the file system does not tell."""
    stat = path.stat()
    return getattr(stat, "st_blocks", stat.st_size // 512 + 1) * 512


@cache
def _memory() -> int:
    """Return the bytes of this machine's memory, or of the control group's share of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text()
    except OSError:
        return total
    return min(total, int(limit)) if re.fullmatch(r"\d+\n?", limit) else total


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.3g} GB"
