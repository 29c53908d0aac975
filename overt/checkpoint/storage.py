"""The checkpoint folders of one run: which exist, which are valid, and which may be deleted.

checkpoints/
  step_00001000/         model.safetensors  optimizer.safetensors  ema.safetensors
                         rng.safetensors  state.json  config.yaml  manifest.json
                         (sharded: rank_00000.safetensors ... and shards.json instead of the
                         first three, see shards.py)
  step_00001000.keep     (if present) never deleted by retention: another run started from it
  step_00002000.broken/  failed its check; moved aside, for the user to look at or delete
  latest, best           links to one of the above, for people; overt itself reads the manifests
                         (copies of them where `scp -r` has followed the links: restore_copies)
  .overt-writing-...     a save in progress, or what a killed process left of one
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

from overt.checkpoint.manifest import MANIFEST, Stored, Verification, read_manifest, verify
from overt.errors import CheckpointError

NAME = re.compile(r"(?:step|epoch)_\d+(?:-\d+)?")
LINK = re.compile(r"latest|best(?:_.+)?")
LEFT_OVER = re.compile(
    r"\.overt-(?:writing|deleting)-(?P<host>.+)-(?P<pid>\d+)-(?P<token>[0-9a-f]{8})-.+"
)

# Tells this process from an earlier one with the same number, as in a restarted container.
_TOKEN = secrets.token_hex(4)
_DAY_SECONDS = 86400.0

logger = logging.getLogger(__name__)


def make_folder(directory: Path) -> None:
    """Create the folder for checkpoints, or say why it cannot be."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint folder {directory} cannot be made ({error.strerror}); choose a run "
            "folder that you may write to"
        ) from None


def hidden_name(purpose: str, name: str) -> str:
    """Name a folder that is being written or deleted, so that its process can be identified."""
    return f".overt-{purpose}-{socket.gethostname()}-{os.getpid()}-{_TOKEN}-{name}"


def name_of(step: int | None, epoch: int) -> str:
    """Name the checkpoint of a step, or of an epoch where steps are not counted."""
    return f"epoch_{epoch:04d}" if step is None else f"step_{step:08d}"


def free_name(directory: Path, name: str) -> str:
    """Return `name`, or `name-2` and so on: a save never replaces an existing folder."""
    candidate, count = name, 1
    while os.path.lexists(directory / candidate):
        count += 1
        candidate = f"{name}-{count}"
    return candidate


# --- finding ---------------------------------------------------------------------------------


def scan(directory: Path) -> tuple[list[Stored], list[Path]]:
    """List the checkpoints of a folder, oldest first, and those whose manifest is unreadable."""
    stored, unreadable = [], []
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        if NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            try:
                stored.append(Stored(path, read_manifest(path)))
            except CheckpointError:
                unreadable.append(path)
    return sorted(stored, key=lambda checkpoint: checkpoint.serial), unreadable


def newest_good(directory: Path) -> Path | None:
    """Return the newest checkpoint that passes its check; broken ones are moved aside."""
    stored, unreadable = scan(directory)
    for path in unreadable:
        quarantine(path, verify(path))
    for checkpoint in reversed(stored):
        verification = verify(checkpoint.path)
        if verification.good:
            return checkpoint.path
        quarantine(checkpoint.path, verification)
    return None


def quarantine(folder: Path, verification: Verification) -> Path:
    """Move a broken checkpoint aside, keeping it, and warn."""
    aside = folder.with_name(free_name(folder.parent, f"{folder.name}.broken"))
    os.rename(folder, aside)
    logger.warning(
        "checkpoint %s is broken (%s); moved to %s, falling back to the previous checkpoint. "
        "Delete that folder when you no longer need it.",
        folder,
        verification,
        aside.name,
    )
    return aside


# --- pointers, pins, deletion ----------------------------------------------------------------


def point(link: Path, target: Path | None) -> None:
    """Make the link `latest` or `best` name `target`, atomically; None removes it."""
    hidden = link.with_name(hidden_name("writing", link.name))
    try:
        if target is None:
            link.unlink(missing_ok=True)
        elif not link.is_symlink() or os.readlink(link) != target.name:
            hidden.unlink(missing_ok=True)
            hidden.symlink_to(target.name)
            os.replace(hidden, link)
    except OSError as error:  # the checkpoint itself is safe, and found without the link
        with suppress(OSError):
            hidden.unlink(missing_ok=True)
        named = "removed" if target is None else f"set to {target.name}"
        logger.warning("the link %s could not be %s: %s", link, named, error)


def copies(directory: Path) -> list[Path]:
    """List the checkpoint folders that are called `latest` or `best`: links that a copy followed.

    `scp -r` and most object stores write the folder that a link names, under the link's name.
    """
    return [
        path
        for path in (sorted(directory.iterdir()) if directory.is_dir() else [])
        if LINK.fullmatch(path.name) and not path.is_symlink() and (path / MANIFEST).is_file()
    ]


def restore_copies(directory: Path) -> None:
    """Make room for links: a copy of a checkpoint beside it goes, another gets its own name back.

    Otherwise `best` would stay the best of the moment of the copy, whatever is trained since.
    """
    for path in copies(directory):
        try:
            _restore_copy(path)
        except OSError as error:  # the checkpoints themselves are found by their manifests
            logger.warning("%s is a folder where a link belongs: %s", path, error)


def _restore_copy(path: Path) -> None:
    verification = verify(path)
    if not verification.good:
        quarantine(path, verification)
        return
    manifest = read_manifest(path)
    same = [
        stored.path.name
        for stored in scan(path.parent)[0]
        if stored.manifest["sha256"] == manifest["sha256"] and verify(stored.path).good
    ]
    if same:
        logger.info("removed %s, a copy of %s where a link belongs", path, same[0])
        remove([hide(path)])
        return
    epoch = manifest.get("epoch")
    name = name_of(manifest.get("step"), epoch if isinstance(epoch, int) else 0)
    name = free_name(path.parent, name)
    os.rename(path, path.with_name(name))
    logger.info("renamed %s to %s: a checkpoint where a link belongs", path, name)


def pin(folder: Path, reason: str) -> None:
    """Protect a checkpoint from retention, because something else now depends on it."""
    folder = folder.resolve()
    marker = folder.with_name(f"{folder.name}.keep")
    try:
        marker.write_text(f"{reason}\n")
    except OSError as error:
        logger.warning("could not write %s (%s): retention may delete %s", marker, error, folder)


def is_pinned(folder: Path) -> bool:
    """Tell whether retention must keep a checkpoint."""
    return folder.with_name(f"{folder.name}.keep").exists()


def hide(folder: Path) -> Path:
    """Rename a checkpoint to be deleted: atomic, so that a half-deleted one never looks broken."""
    hidden = folder.with_name(hidden_name("deleting", folder.name))
    try:
        os.rename(folder, hidden)
    except OSError as error:
        logger.warning("the old checkpoint %s could not be deleted: %s", folder, error)
    return hidden


def remove(hidden: list[Path]) -> None:
    """Delete hidden folders, which takes a while; what is left goes at the next start."""
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
