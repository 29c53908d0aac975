"""Checkpoints with another content than overt wrote, and every checksum right."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from overt.checkpoint.manifest import MANIFEST, hash_of
from overt.checkpoint.tensor_files import checksum_file


def sign(folder: Path) -> None:
    """Make the manifest agree with the files as they are now."""
    manifest = json.loads((folder / MANIFEST).read_text())
    for name in manifest["files"]:
        path = folder / name
        manifest["files"][name] = {"size": path.stat().st_size, "crc32": checksum_file(path)}
    manifest["sha256"] = hash_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def forge_tensors(
    folder: Path, file: str, change: Callable[[dict[str, Tensor]], Mapping[str, Tensor]]
) -> None:
    """Replace the tensors of one file."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = folder / file
    with safe_open(path, framework="pt") as opened:
        metadata = opened.metadata()
    save_file(dict(change(load_file(path))), path, metadata)
    sign(folder)


def forge_state(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change state.json in place."""
    path = folder / "state.json"
    described = json.loads(path.read_text())
    change(described)
    path.write_text(json.dumps(described))
    sign(folder)


def put(described: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key."""
    *parents, last = key.split(".")
    for name in parents:
        described = described[name]
    described[last] = value
