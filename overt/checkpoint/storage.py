"""Checkpoint folders on disk: written whole or not at all, checked by sums, never lost to a crash.

checkpoints/
  step_00001000/         model.safetensors  optimizer.safetensors  ema.safetensors
                         rng.safetensors  state.json  config.yaml  manifest.json
                         (of a sharded model: rank_00000.safetensors ... and shards.json instead of
                         the first three, see shards.py)
  step_00001000.keep     (if present) never deleted by retention: another run started from it
  step_00002000.broken/  failed its check; moved aside, for the user to look at or delete
  latest, best           links to one of the above, for people; the manifests are what counts
  .overt-writing-...     a save under way, or what a killed process left of one
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import platform
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from overt import __version__
from overt.checkpoint.tensor_files import Bytes, Content, checksum_file, workers, write_file
from overt.errors import CheckpointError

FORMAT = 1
MANIFEST = "manifest.json"
SHARDS = "shards.json"  # where the pieces of a sharded model lie
NAME = re.compile(r"(?:step|epoch)_\d+(?:-\d+)?")
LEFT_OVER = re.compile(
    r"\.overt-(?:writing|deleting)-(?P<host>.+)-(?P<pid>\d+)-(?P<token>[0-9a-f]{8})-.+"
)
PACKAGES = ("torch", "numpy", "safetensors")

# Tells this process from an earlier one with the same number, as in a restarted container.
_TOKEN = secrets.token_hex(4)
_DAY_SECONDS = 86400.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stored:
    """One checkpoint folder, as its manifest describes it."""

    path: Path
    manifest: dict[str, Any]

    @property
    def serial(self) -> int:
        """Counts the saves of a folder: the highest is the newest, whatever step it is of."""
        return int(self.manifest.get("serial", 0))

    @property
    def metric(self) -> float | None:
        value = self.manifest.get("metric")
        return None if value is None else float(value)

    @property
    def is_best(self) -> bool:
        return bool(self.manifest.get("is_best"))


@dataclass
class Verification:
    """What is wrong with a folder: `broken` forbids its use, `extra` files are only reported."""

    broken: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.broken

    def __str__(self) -> str:
        found = self.broken + [f"{name}: not part of the checkpoint" for name in self.extra]
        return "; ".join(found) or "good"


# --- writing ---------------------------------------------------------------------------------


def make_folder(directory: Path) -> None:
    """Create the folder for checkpoints, or say why it cannot be."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint folder {directory} cannot be made ({error.strerror}); choose a run "
            "folder that you may write to"
        ) from None


def write_folder(
    directory: Path,
    name: str,
    files: Mapping[str, Content],
    facts: Mapping[str, Any],
    parallel: bool = True,
    shares: Shares | None = None,
) -> Stored:
    """Write a checkpoint beside the others; it appears under `name` complete, or not at all.

    With `shares` the other processes write theirs into the same hidden folder; it is waited for.
    """
    hidden = directory / hidden_name("writing", name)
    needed = sum(content.size for content in files.values())
    if shares is None:
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
        if shares is not None:
            entries |= _wait_for(hidden, shares)
        manifest = {"format": FORMAT, **facts, "versions": versions(), "files": entries}
        manifest["sha256"] = _manifest_hash(manifest)
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


@dataclass(frozen=True)
class Shares:
    """Files that other processes write into a checkpoint, and how long they may take."""

    files: tuple[str, ...]
    seconds: float


def write_share(hidden: Path, file: str, content: Content, parallel: bool = True) -> None:
    """One process's file of a checkpoint that the main process completes.

    A note beside it says that it is whole, or why not. So nobody waits in a collective while a
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


def _wait_for(hidden: Path, shares: Shares) -> dict[str, Any]:
    """The manifest's entries of the other processes' files, from their notes."""
    entries: dict[str, Any] = {}
    end, pause = time.monotonic() + shares.seconds, 0.002
    while missing := [file for file in shares.files if file not in entries]:
        present = set(os.listdir(hidden))  # which also asks a network file system anew
        for file in missing:
            if f"{file}.note" in present:
                note = hidden / f"{file}.note"
                entries[file] = json.loads(note.read_text())
                if "problem" in entries[file]:
                    raise CheckpointError(entries[file]["problem"])
                note.unlink()
        if len(entries) == len(shares.files):
            break
        if time.monotonic() > end:
            raise CheckpointError(
                f"{', '.join(missing)} of {hidden.name} did not come within "
                f"{shares.seconds:.0f} s: a process ended, or does not see {hidden.parent}. All "
                "hosts need the checkpoint folder: put it on a shared file system. The "
                "checkpoints already there are unharmed."
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
    return entries


def write_whole_file(path: Path, write: Callable[[Path], object], needed: int) -> None:
    """Let `write` make a file, so that `path` holds what it held before or all of the new."""
    hidden = path.with_name(hidden_name("writing", path.name))
    try:
        write(hidden)
        sync(hidden)
        os.replace(hidden, path)
        sync(path.parent)
    except BaseException as error:
        hidden.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise save_error(path.parent, path.name, needed, error) from error
        raise


def save_error(directory: Path, name: str, needed: int, error: OSError) -> CheckpointError:
    """The error of a failed save: what was needed, what there is, and what to do."""
    reason = f"{name} could not be written to {directory}: {error.strerror or error}"
    kept = "The checkpoints already there are unharmed."
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        cause = {
            errno.ENOSPC: "free space, or put the run folder on a larger disk",
            errno.EDQUOT: "free space or ask for a larger quota (`quota -s` shows yours)",
            errno.EFBIG: "raise the limit on file sizes (`ulimit -f` shows it)",
        }[error.errno]
        return CheckpointError(
            f"{reason}. It needs {megabytes(needed)}, and {megabytes(free_bytes(directory))} are "
            f"free there. {kept} To go on: {cause}, or keep fewer checkpoints "
            "(checkpoint.keep_last_n, checkpoint.keep_best_n)."
        )
    return CheckpointError(
        f"{reason}. {kept} Check that {directory} exists, is writable and its disk is healthy."
    )


def free_bytes(directory: Path) -> int:
    return shutil.disk_usage(directory).free


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def sync(path: Path) -> None:
    """Make a file durable, or the names in a folder, which fsync of its files does not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def versions() -> dict[str, str]:
    """Versions of Python and of what reads and writes the tensors."""
    found = {"python": platform.python_version(), "overt": __version__}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def hidden_name(purpose: str, name: str) -> str:
    return f".overt-{purpose}-{socket.gethostname()}-{os.getpid()}-{_TOKEN}-{name}"


def free_name(directory: Path, name: str) -> str:
    """`name`, or `name-2` and so on: a save never replaces a folder that is there."""
    candidate, count = name, 1
    while os.path.lexists(directory / candidate):
        count += 1
        candidate = f"{name}-{count}"
    return candidate


# --- reading and checking --------------------------------------------------------------------


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint folder, itself checked by its hash."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {MANIFEST}: not a checkpoint of overt") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder / MANIFEST} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("sha256") != _manifest_hash(manifest):
        raise CheckpointError(f"{folder / MANIFEST} is damaged: its own hash does not match")
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder} has format {manifest.get('format')}; this overt reads format {FORMAT}. "
            "Use the version of overt that wrote it (see `versions` in its manifest)."
        )
    if not _is_well_formed(manifest):
        raise CheckpointError(f"{folder / MANIFEST} was not written by overt: keys or types differ")
    return manifest


def _is_well_formed(manifest: Mapping[str, Any]) -> bool:
    """Whether what is read from a manifest has the type that it is written with."""
    files, metric = manifest.get("files"), manifest.get("metric")
    return (
        type(manifest.get("serial", 0)) is int
        and type(manifest.get("step", 0)) in (int, type(None))
        and type(metric) in (int, float, type(None))
        and isinstance(files, dict)
        and all(
            isinstance(entry, dict)
            and type(entry.get("size")) is int
            and isinstance(entry.get("crc32"), str)
            for entry in files.values()
        )
    )


def _manifest_hash(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def verify(folder: Path, contents: bool = True) -> Verification:
    """Compare a folder with its manifest; `contents=False` looks at names and sizes only."""
    found = Verification()
    try:
        files = read_manifest(folder)["files"]
    except CheckpointError as error:
        found.broken.append(str(error))
        return found
    intact = []
    for name, expected in files.items():
        path = folder / name
        if Path(name).name != name or name in (MANIFEST, ".", ".."):
            found.broken.append(f"{name}: the manifest names a file outside the folder")
        elif path.is_symlink() or not path.is_file():
            found.broken.append(f"{name}: missing")
        elif path.stat().st_size != expected["size"]:
            size = path.stat().st_size
            found.broken.append(f"{name}: {size} bytes instead of {expected['size']}")
        else:
            intact.append(name)
    if contents:
        with workers(len(intact), parallel=True) as pool:
            checksums = pool.map(_checksum, [folder / name for name in intact])
            for name, value in zip(intact, checksums, strict=True):
                if value != files[name]["crc32"]:
                    found.broken.append(f"{name}: its contents have changed (CRC-32 differs)")
    found.extra = sorted({entry.name for entry in folder.iterdir()} - {*files, MANIFEST})
    return found


def _checksum(path: Path) -> str:
    try:
        return checksum_file(path)
    except OSError as error:
        return f"unreadable: {error}"


def scan(directory: Path) -> tuple[list[Stored], list[Path]]:
    """The checkpoints of a folder, oldest first, and those whose manifest cannot be read."""
    stored, unreadable = [], []
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        if NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            try:
                stored.append(Stored(path, read_manifest(path)))
            except CheckpointError:
                unreadable.append(path)
    return sorted(stored, key=lambda one: one.serial), unreadable


def newest_good(directory: Path) -> Path | None:
    """The newest checkpoint that passes its check; broken ones on the way are moved aside."""
    stored, unreadable = scan(directory)
    for path in unreadable:
        quarantine(path, verify(path))
    for one in reversed(stored):
        found = verify(one.path)
        if found.good:
            return one.path
        quarantine(one.path, found)
    return None


def quarantine(folder: Path, found: Verification) -> Path:
    """Move a broken checkpoint aside, keeping it, and say so."""
    aside = folder.with_name(free_name(folder.parent, f"{folder.name}.broken"))
    os.rename(folder, aside)
    logger.warning(
        "checkpoint %s is broken (%s); moved to %s, and the one before it is used instead. "
        "Delete that folder when you no longer need it.",
        folder,
        found,
        aside.name,
    )
    return aside


# --- pointers, retention, left-overs ---------------------------------------------------------


def point(link: Path, target: Path | None) -> None:
    """Let the link `latest` or `best` name `target`, in one step; None takes it away."""
    if target is None:
        link.unlink(missing_ok=True)
        return
    if link.is_symlink() and os.readlink(link) == target.name:
        return
    hidden = link.with_name(hidden_name("writing", link.name))
    try:
        hidden.unlink(missing_ok=True)
        hidden.symlink_to(target.name)
        os.replace(hidden, link)
    except OSError as error:  # the checkpoint itself is safe, and found without the link
        logger.warning("the link %s could not be set to %s: %s", link, target.name, error)


def pin(folder: Path, reason: str) -> None:
    """Protect a checkpoint from retention, because something else now depends on it."""
    folder = folder.resolve()
    marker = folder.with_name(f"{folder.name}.keep")
    try:
        marker.write_text(f"{reason}\n")
    except OSError as error:
        logger.warning("could not write %s (%s): a clean-up may delete %s", marker, error, folder)


def is_pinned(folder: Path) -> bool:
    return folder.with_name(f"{folder.name}.keep").exists()


def hide(folder: Path) -> Path:
    """First half of deleting: in one step, so that no half-deleted one is taken for broken."""
    hidden = folder.with_name(hidden_name("deleting", folder.name))
    try:
        os.rename(folder, hidden)
    except OSError as error:
        logger.warning("the superfluous checkpoint %s could not be deleted: %s", folder, error)
    return hidden


def remove(hidden: list[Path]) -> None:
    """Second half of deleting, which takes a while; a rest is removed at the next start."""
    for folder in hidden:
        shutil.rmtree(folder, ignore_errors=True)


def clean_left_overs(directory: Path) -> list[Path]:
    """Remove what killed processes left; never what a living process may still be writing."""
    removed = []
    for path in sorted(directory.glob(".overt-*")):
        match = LEFT_OVER.fullmatch(path.name)
        if match is not None and _is_abandoned(path, match):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            removed.append(path)
    return removed


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
    except OSError:  # alive, and of another user
        return False
    return False
