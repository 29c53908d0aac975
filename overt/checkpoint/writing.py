"""Atomic writes: a checkpoint folder or a file appears complete, or not at all.

A folder is written under a hidden name, made durable by fsync and then renamed. The other ranks of
a sharded model write their files into the same hidden folder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overt.checkpoint.manifest import MANIFEST, Stored, make_manifest
from overt.checkpoint.storage import hidden_name
from overt.checkpoint.tensor_files import Bytes, Content, workers, write_file
from overt.errors import CheckpointError


@dataclass(frozen=True)
class OtherShards:
    """The files that other ranks write into a checkpoint, and how long they may take."""

    files: tuple[str, ...]
    seconds: float


def write_folder(
    directory: Path,
    name: str,
    files: Mapping[str, Content],
    facts: Mapping[str, Any],
    parallel: bool = True,
    others: OtherShards | None = None,
) -> Stored:
    """Write a checkpoint beside the others; it appears under `name` complete, or not at all.

    With `others` it waits for the files that other ranks write into the same hidden folder.
    """
    hidden = directory / hidden_name("writing", name)
    needed = sum(content.size for content in files.values())
    if others is None:
        shutil.rmtree(hidden, ignore_errors=True)  # of an earlier save that failed here
    try:
        hidden.mkdir(exist_ok=True)
        with workers(len(files), parallel) as pool:
            written = {
                file: pool.submit(write_file, hidden / file, content, parallel)
                for file, content in files.items()
            }
            checksums = {file: future.result() for file, future in written.items()}
        entries = {
            file: {"size": content.size, "crc32": checksums[file]}
            for file, content in files.items()
        }
        if others is not None:
            entries |= _wait_for(hidden, others)
        manifest = make_manifest(facts, entries)
        write_file(hidden / MANIFEST, Bytes(json.dumps(manifest, indent=1).encode()), parallel)
        sync(hidden)
        os.rename(hidden, directory / name)
        sync(directory)
    except OSError as error:
        shutil.rmtree(hidden, ignore_errors=True)
        raise save_error(directory, name, needed, error) from error
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    return Stored(directory / name, manifest)


def write_whole_file(path: Path, write: Callable[[Path], object], needed: int) -> None:
    """Let `write` make a file, atomically: `path` holds the old content or all of the new."""
    hidden = path.with_name(hidden_name("writing", path.name))
    try:
        write(hidden)
        sync(hidden)
        os.replace(hidden, path)
        sync(path.parent)
    except BaseException as error:
        hidden.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise save_error(path.parent, path.name, needed, error, export=True) from error
        raise


# --- shards ----------------------------------------------------------------------------------


def write_shard(hidden: Path, file: str, content: Content, parallel: bool = True) -> None:
    """Write this rank's file of a checkpoint that the main process completes.

    A note beside it says that it is complete, or why not. So no rank waits in a collective while a
    file is written, and the note takes the same way as the file: who sees the one sees the other.
    """
    try:
        hidden.mkdir(exist_ok=True)
        checksum = write_file(hidden / file, content, parallel)
    except OSError as error:
        problem = save_error(hidden.parent, file, content.size, error)
        with contextlib.suppress(OSError):  # the folder itself may be what is out of reach
            _leave_note(hidden, file, {"problem": str(problem)})
        raise problem from error
    _leave_note(hidden, file, {"size": content.size, "crc32": checksum})


def _leave_note(hidden: Path, file: str, note: Mapping[str, Any]) -> None:
    unfinished = hidden / f"{file}.unfinished"
    unfinished.write_text(json.dumps(note))
    os.replace(unfinished, hidden / f"{file}.note")


def _wait_for(hidden: Path, others: OtherShards) -> dict[str, Any]:
    """Return the manifest's entries of the other ranks' files, from their notes."""
    entries: dict[str, Any] = {}
    end, pause = time.monotonic() + others.seconds, 0.002
    while missing := [file for file in others.files if file not in entries]:
        present = set(os.listdir(hidden))  # which also makes a network file system look again
        for file in missing:
            if f"{file}.note" in present:
                note = hidden / f"{file}.note"
                entries[file] = json.loads(note.read_text())
                if "problem" in entries[file]:
                    raise CheckpointError(entries[file]["problem"])
                note.unlink()
        if len(entries) == len(others.files):
            break
        if time.monotonic() > end:
            raise CheckpointError(
                f"{', '.join(missing)} of {hidden.name} did not arrive within "
                f"{others.seconds:.0f} s: a process ended, or does not see {hidden.parent}. All "
                "hosts need the checkpoint folder: put it on a shared file system. The "
                "checkpoints already there are unharmed."
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
    return entries


# --- disks -----------------------------------------------------------------------------------


def save_error(
    directory: Path, name: str, needed: int, error: OSError, export: bool = False
) -> CheckpointError:
    """Word the error of a failed save: what was needed, what there is, and what to do.

    An `export` is a single file, which no setting of a run makes smaller.
    """
    reason = f"{name} could not be written to {directory}: {error.strerror or error}"
    target, kept, fewer = (
        "the run folder",
        " The checkpoints already there are unharmed.",
        ", or keep fewer checkpoints (checkpoint.keep_last_n, checkpoint.keep_best_n)",
    )
    if export:
        target, kept, fewer = "the file", "", ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        cause = {
            errno.ENOSPC: f"free space, or put {target} on a larger disk",
            errno.EDQUOT: "free space or ask for a larger quota (`quota -s` shows yours)",
            errno.EFBIG: "raise the limit on file sizes (`ulimit -f` shows it)",
        }[error.errno]
        return CheckpointError(
            f"{reason}. It needs {megabytes(needed)}, and {megabytes(free_bytes(directory))} are "
            f"free there.{kept} To continue: {cause}{fewer}."
        )
    return CheckpointError(
        f"{reason}.{kept} Check that {directory} exists, is writable and its disk is healthy."
    )


def free_bytes(directory: Path) -> int:
    """Return the space left on the disk of a folder."""
    return shutil.disk_usage(directory).free


def megabytes(size: int) -> str:
    """Format a number of bytes for a message."""
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"


def sync(path: Path) -> None:
    """Make a file durable, or the names in a folder, which fsync of its files does not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
