"""The files of a stream, and how to open them: paths, braces, globs, URLs."""

from __future__ import annotations

import glob
import gzip
import re
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import BinaryIO, cast

from overt.errors import DataError

Opener = Callable[[str], BinaryIO]

INDEX_SUFFIX = ".idx.json"  # of the files that we write beside shards
MOST_SHARDS = 10**7  # of one pattern; more is a slip of the keyboard
GZIP = b"\x1f\x8b"  # the first bytes of a compressed file
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def expand_shards(patterns: str | Sequence[str]) -> tuple[str, ...]:
    """Expand patterns to shards: `train-{000..099}.tar`, `{a,b}.tar`, `*.tar`.

    Globs are for local files. The order of the patterns is kept; names within a glob are sorted.
    """
    shards: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        for name in expand_braces(pattern):
            if is_url(name) or not glob.has_magic(name) or Path(name).exists():
                shards.append(name)
                continue
            matches = sorted(glob.glob(name, recursive=True))
            shards += [match for match in matches if not match.endswith(INDEX_SUFFIX)]
    if not shards:
        raise DataError(f"no shards match {patterns!r}; check the path and the pattern")
    if len(set(shards)) < len(shards):
        twice = next(shard for shard in shards if shards.count(shard) > 1)
        raise DataError(f"the patterns {patterns!r} name {twice} twice; name every shard once")
    return tuple(shards)


def expand_braces(pattern: str) -> list[str]:
    """Expand a pattern with `{000..012}` and `{a,b}`, as a shell would."""
    texts: list[str] = []
    choices: list[list[str]] = []
    last, count = 0, 1
    for match in _BRACES.finditer(pattern):
        options = _options(match[1], pattern)
        count *= len(options)
        if count > MOST_SHARDS:
            raise DataError(f"the pattern {pattern!r} names more than {MOST_SHARDS} shards")
        texts.append(pattern[last : match.start()])
        choices.append(options)
        last = match.end()
    texts.append(pattern[last:])
    if any(brace in text for text in texts for brace in "{}"):
        raise DataError(
            f"the pattern {pattern!r} has braces that do not match; expected {{000..099}} or "
            "{a,b}"
        )
    return [
        "".join(text + option for text, option in zip(texts, (*chosen, ""), strict=True))
        for chosen in product(*choices)
    ]


def _options(text: str, pattern: str) -> list[str]:
    numbers = _RANGE.fullmatch(text)
    if numbers is None:
        if "," not in text:
            raise DataError(
                f"the pattern {pattern!r} has {{{text}}}; expected a range such as {{000..099}} or "
                "a list such as {a,b}"
            )
        return text.split(",")
    first, last = int(numbers[1]), int(numbers[2])
    if not first <= last < first + MOST_SHARDS:
        raise DataError(
            f"the pattern {pattern!r} counts from {first} to {last}; expected up to {MOST_SHARDS} "
            "shards, the smaller number first"
        )
    return [str(index).zfill(len(numbers[1])) for index in range(first, last + 1)]


def is_url(shard: str) -> bool:
    return "://" in shard


def open_shard(shard: str) -> BinaryIO:
    """Open a local file, or a URL through fsspec."""
    if not is_url(shard):
        return Path(shard).open("rb")
    try:
        import fsspec
    except ImportError as error:
        raise DataError(
            f"{shard} is a URL, which is opened with fsspec: pip install 'overt[streams]'"
        ) from error
    try:
        # Samples are read at once: a read-ahead cache would load what other ranks read.
        return cast(BinaryIO, fsspec.open(shard, "rb", cache_type="none").open())
    except ImportError as error:  # s3fs, gcsfs, ...
        raise DataError(f"{shard} needs a package that is not installed: {error}") from error
    except ValueError as error:
        raise DataError(f"{shard} cannot be opened: {error}") from error


def open_with(opener: Opener, shard: str) -> BinaryIO:
    """Open a shard with any opener; raise a DataError if that fails."""
    try:
        return opener(shard)
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise DataError(f"{shard} cannot be opened ({reason}); check the path") from error


def unzipped(file: BinaryIO, shard: str) -> BinaryIO:
    """Return a file at its start, decompressed if it is gzip; it need not seek."""
    try:
        start = file.read(2)
    except OSError as error:
        raise DataError(f"{shard}, byte 0: cannot be read ({error})") from error
    rejoined = cast(BinaryIO, _Rejoined(start, file))
    if start == GZIP:
        return cast(BinaryIO, gzip.GzipFile(fileobj=rejoined, mode="rb"))
    return rejoined


class _Rejoined:
    """A file whose first bytes have already been read."""

    def __init__(self, start: bytes, file: BinaryIO) -> None:
        self.start, self.file = start, file

    def read(self, size: int = -1) -> bytes:
        if not self.start:
            return self.file.read(size)
        start, self.start = self.start, b""
        return start
