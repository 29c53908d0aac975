"""The manifest of a checkpoint folder: what it must hold, and whether it still does.

manifest.json lists every file with size and CRC-32, the step, the score, versions of the packages
that wrote it, and a SHA-256 of itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from overt import __version__
from overt.checkpoint.tensor_files import checksum_file, workers
from overt.errors import CheckpointError

FORMAT = 1
MANIFEST = "manifest.json"
SHARDS = "shards.json"  # in a sharded checkpoint: which rank's file holds which tensors
PARTS = ("model", "ema", "optimizer")  # PART.safetensors, or PART/NAME in shards.json
LARGEST_MANIFEST = 2**26  # bytes
PACKAGES = ("torch", "numpy", "safetensors")


@dataclass(frozen=True)
class Stored:
    """One checkpoint folder, as its manifest describes it."""

    path: Path
    manifest: dict[str, Any]

    @property
    def serial(self) -> int:
        """Count the saves of a run: the highest is the newest, whatever its step."""
        return int(self.manifest.get("serial", 0))

    @property
    def metric_name(self) -> str | None:
        name: str | None = self.manifest.get("metric_name")
        return name

    @property
    def metric(self) -> float | None:
        value = self.manifest.get("metric")
        return None if value is None else float(value)

    def is_measured_by(self, metric_name: str | None, mode: str) -> bool:
        """Tell whether it was ranked by this metric in this direction; older ones lack the mode."""
        return self.metric_name == metric_name and self.manifest.get("mode", mode) == mode

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
        problems = self.broken + [f"{name}: not part of the checkpoint" for name in self.extra]
        return "; ".join(problems) or "good"


def make_manifest(facts: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a checkpoint: `facts` about it, and size and checksum of each of its files."""
    manifest = {"format": FORMAT, **facts, "versions": dict(versions()), "files": dict(files)}
    return {**manifest, "sha256": hash_of(manifest)}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint folder; refused where its own hash does not match."""
    try:
        with (folder / MANIFEST).open("rb") as file:
            manifest = json.loads(file.read(LARGEST_MANIFEST))
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} has no {MANIFEST}: not a checkpoint of overt{checkpoint_of_run(folder)}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder / MANIFEST} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("sha256") != hash_of(manifest):
        raise CheckpointError(f"{folder / MANIFEST} is damaged: its own hash does not match")
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder} has format {manifest.get('format')}; this overt reads format {FORMAT}. "
            "Use the version of overt that wrote it (see `versions` in its manifest)."
        )
    if not _is_well_formed(manifest):
        raise CheckpointError(f"{folder / MANIFEST} was not written by overt: keys or types differ")
    return manifest


def checkpoint_of_run(folder: Path) -> str:
    """Return a hint where this is the folder of a run or its checkpoints, or one of torch's own."""
    if (folder / ".metadata").is_file():  # a pickle, which is not read here
        command = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"
        return (
            "; torch.distributed.checkpoint saved it. If you trust it, convert it with "
            f"`{command} {shlex.quote(str(folder))} weights.pth`"
        )
    folders = (folder / "checkpoints", folder)
    candidates = [above / name for above in folders for name in ("best", "latest")]
    hints = [f"; did you mean {path}?" for path in candidates if (path / MANIFEST).is_file()]
    return "".join(hints[:1])


def hash_of(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all that a manifest says, except the hash itself."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def verify(folder: Path, contents: bool = True) -> Verification:
    """Compare a folder with its manifest; `contents=False` looks at names and sizes only."""
    result = Verification()
    try:
        files = read_manifest(folder)["files"]
    except CheckpointError as error:
        result.broken.append(str(error))
        return result
    intact = []
    for name, expected in files.items():
        path = folder / name
        if Path(name).name != name or name in (MANIFEST, ".", ".."):
            result.broken.append(f"{name}: the manifest names a file outside the folder")
        elif path.is_symlink() or not path.is_file():
            result.broken.append(f"{name}: missing")
        elif path.stat().st_size != expected["size"]:
            size = path.stat().st_size
            result.broken.append(f"{name}: {size} bytes instead of {expected['size']}")
        else:
            intact.append(name)
    if contents:
        with workers(len(intact), parallel=True) as pool:
            checksums = pool.map(_checksum, [folder / name for name in intact])
            for name, value in zip(intact, checksums, strict=True):
                if value != files[name]["crc32"]:
                    result.broken.append(f"{name}: its contents have changed (CRC-32 differs)")
    result.extra = sorted({entry.name for entry in folder.iterdir()} - {*files, MANIFEST})
    return result


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of Python and of the packages that read and write the tensors.

    Read once: those of this process, even where an upgrade has replaced the files since.
    """
    installed = {"python": platform.python_version(), "overt": __version__}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return installed


def _is_well_formed(manifest: Mapping[str, Any]) -> bool:
    """Tell whether every value that is read later has the type it is written with."""
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


def _checksum(path: Path) -> str:
    try:
        return checksum_file(path)
    except OSError as error:
        return f"unreadable: {error}"
