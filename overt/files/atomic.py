"""Files and folders that appear under their name complete, or not at all.

They are filled under a hidden name that no other process uses, then renamed. So two processes that
make the same thing at once do not disturb each other: of files the last one stays, of folders the
first. Imports no torch.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from overt.errors import DataError

LEFT_OVER = re.compile(
    r"\..+\.(?P<host>.+)-(?P<pid>\d+)-(?P<token>[0-9a-f]{8})-(?P<number>\d+)\.partial"
)
# Tells this process from an earlier one with the same number, as in a restarted container.
_TOKEN = secrets.token_hex(4)
_NUMBERS = itertools.count()
_DAY_SECONDS = 86400.0


class MadeMeanwhileError(DataError):
    """Another process made the same folder first; its content stays."""


def hidden_name(target: Path) -> Path:
    """A name beside `target` that no other process, and no other call, uses."""
    if not target.name:  # `--output ''`
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    owner = f"{socket.gethostname()}-{os.getpid()}-{_TOKEN}-{next(_NUMBERS)}"
    return target.with_name(f".{target.name}.{owner}.partial")


@contextmanager
def new_file(target: Path, durable: bool = False) -> Iterator[Path]:
    """A hidden path to write to; it replaces `target` once the block has ended well.

    `durable` waits until the content is on the disk.
    """
    if target.is_dir():  # said now, and not of the hidden file
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = hidden_name(target)
    try:
        yield hidden
        if durable:
            _to_disk(hidden)
        os.replace(hidden, target)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A hidden folder to fill; it becomes `target`, new or empty, once the block has ended well.

    Raises MadeMeanwhileError where `target` has content by then.
    """
    hidden = hidden_name(target)
    hidden.mkdir(parents=True)
    try:
        yield hidden
        try:
            os.rename(hidden, target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            raise MadeMeanwhileError(
                f"{target} was created by another process in the meantime and is not overwritten; "
                "use it, or choose another name"
            ) from None
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def remove_left_overs(folder: Path) -> None:
    """Remove what killed processes left in `folder`; never what a living one may be writing."""
    for path in folder.glob(".*.partial") if folder.is_dir() else ():
        match = LEFT_OVER.fullmatch(path.name)
        with suppress(OSError):  # another process removes it too
            if match is None or not _is_abandoned(path, match):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def is_unfinished(path: Path) -> bool:
    """Whether a file or folder is being written, or was when its process was killed."""
    return path.name.endswith(".partial")


def is_copy(path: Path, original: str) -> bool:
    """Return whether `path` is another file than `original`, with the same content.

    Where in doubt it is not: one file that is mounted twice keeps its number, and an original that
    was moved is gone from where it was.
    """
    if not original:
        return False
    try:
        first = Path(original)
        return path.stat().st_ino != first.stat().st_ino and path.read_bytes() == first.read_bytes()
    except (OSError, ValueError):
        return False


def _is_abandoned(path: Path, match: re.Match[str]) -> bool:
    if match["host"] != socket.gethostname():
        # Another host's process cannot be asked; a living one would have written within a day.
        return time.time() - path.lstat().st_mtime > _DAY_SECONDS
    if int(match["pid"]) == os.getpid():
        return match["token"] != _TOKEN
    try:
        os.kill(int(match["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # alive and of another user, or no number of a process
        return False
    return False


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
