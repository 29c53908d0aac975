"""The tensors in a checkpoint of any kind: overt's folders, files and folders of others.

Nothing that a file contains is ever run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from torch import Tensor

from overt.checkpoint.manifest import MANIFEST, PARTS, SHARDS, read_manifest, verify
from overt.checkpoint.recorded import recorded_settings
from overt.errors import CheckpointError
from overt.files.weight_files import read_safetensors
from overt.files.weight_folders import read_weight_file, read_weight_folder, weights_in
from overt.files.yaml_text import read_yaml

WEIGHTS = ("model", "ema")  # the parts that are a model's weights


def read_tensors(path: str | Path, part: str = "model") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the weights in a checkpoint of any format, on the CPU, and whatever else it says."""
    path = Path(path)
    if part not in WEIGHTS:
        raise CheckpointError(f"a checkpoint has the parts {' and '.join(WEIGHTS)}, not {part!r}")
    if path.is_dir() and not is_of_others(path):
        return _read_folder(path, part)
    if not path.exists():
        raise CheckpointError(f"no checkpoint at {path}; check the path")
    if part != "model":
        raise CheckpointError(f"{path} has no EMA part; only overt's own folders have one")
    if not path.is_dir():
        tensors, metadata = read_weight_file(path)
        settings = recorded_settings(path)
        return tensors, metadata if settings is None else {**metadata, "settings": settings}
    tensors, metadata = read_weight_folder(path)
    if (path / "config.yaml").is_file():  # a folder by `overt ckpt export --to hub`
        metadata["settings"] = OmegaConf.to_container(read_yaml(path / "config.yaml"))
    return tensors, metadata


def read_part(folder: Path, part: str) -> dict[str, Tensor]:
    """Read one part of a checkpoint folder: model, ema or optimizer; checksums are not compared."""
    if part not in folder_parts(folder):
        raise CheckpointError(
            f"{folder} has no {part} part; it holds {', '.join(folder_parts(folder))}"
        )
    if SHARDS in read_manifest(folder)["files"]:
        from overt.checkpoint import shards

        return shards.read_part(folder, part)
    return read_safetensors(folder / f"{part}.safetensors")[0]


def folder_parts(folder: Path) -> list[str]:
    """Name what a checkpoint folder holds: model, and maybe ema and optimizer."""
    if is_of_others(folder):
        return ["model"]
    files = _read_manifest(folder)["files"]
    if SHARDS in files:
        from overt.checkpoint import shards

        return shards.folder_parts(folder)
    return [part for part in PARTS if f"{part}.safetensors" in files]


def _read_folder(folder: Path, part: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    manifest = _read_manifest(folder)
    verification = verify(folder)
    if not verification.good:
        raise CheckpointError(
            f"{folder} is broken ({verification}); use an older checkpoint next to it, or copy it "
            "again from its source"
        )
    metadata: dict[str, Any] = {"manifest": manifest}
    if "config.yaml" in manifest["files"]:
        metadata["settings"] = OmegaConf.to_container(read_yaml(folder / "config.yaml"))
    return read_part(folder, part), metadata


def is_of_others(folder: Path) -> bool:
    """Tell whether a folder is laid out as Hugging Face does it."""
    return not (folder / MANIFEST).exists() and weights_in(folder) is not None


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not (folder / MANIFEST).exists() and (folder / "latest").exists():
        raise CheckpointError(
            f"{folder} holds several checkpoints; name one, such as {folder / 'latest'} or "
            f"{folder / 'best'}"
        )
    return read_manifest(folder)
