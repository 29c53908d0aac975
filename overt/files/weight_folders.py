"""Weights in folders as Hugging Face lays them out: one file, or shards with an index.

config.json   model.safetensors                                   one file
config.json   model.safetensors.index.json   model-00001-of-00002.safetensors ...
config.json   pytorch_model.bin, or pytorch_model.bin.index.json with pytorch_model-*.bin
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from overt.errors import CheckpointError
from overt.files.weight_files import (
    CONTAINERS,
    find_weights,
    is_safetensors,
    read_safetensors,
    read_torch_file,
    some,
)

INDEX = ".index.json"
# In this order: safetensors before pickles, one file before shards.
FILES = (
    "model.safetensors",
    f"model.safetensors{INDEX}",
    "diffusion_pytorch_model.safetensors",
    f"diffusion_pytorch_model.safetensors{INDEX}",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX}",
)


def weights_in(folder: Path) -> Path | None:
    """Return the file, or the index of shards, that holds the weights of a folder."""
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def is_index(path: Path) -> bool:
    return path.name.endswith(INDEX)


def read_weight_file(
    path: Path, containers: tuple[str, ...] = CONTAINERS
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a safetensors file, a file of torch.save, or an index with its shards."""
    if is_index(path):
        return _read_shards(path, containers)
    if path.suffix == ".safetensors" or is_safetensors(path):
        tensors, metadata = read_safetensors(path)
        return tensors, {"metadata": metadata}
    tensors, rest = find_weights(read_torch_file(path), path, containers)
    empty = [key for key, tensor in tensors.items() if tensor.is_meta]
    if empty:
        raise CheckpointError(
            f"{path} holds shapes without values for {len(empty)} tensor(s) ({some(empty)}): it "
            "was saved from a model on the meta device. Save it again once its weights are loaded."
        )
    return tensors, rest


def read_weight_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the weights of a folder; `config` in the rest is its config.json."""
    path = weights_in(folder)
    if path is None:
        raise CheckpointError(
            f"{folder} holds no weights that overt knows; expected manifest.json (a checkpoint of "
            f"overt) or one of {', '.join(FILES)}"
        )
    tensors, metadata = read_weight_file(path)
    config = folder / "config.json"
    return tensors, {**metadata, **({"config": _read_json(config)} if config.is_file() else {})}


def _read_shards(index: Path, containers: tuple[str, ...]) -> tuple[dict[str, Tensor], Any]:
    files = _shards_of(index)
    tensors: dict[str, Tensor] = {}
    for name, keys in files.items():
        path = index.parent / name
        if not path.is_file():
            raise CheckpointError(
                f"{index} names the shard {name}, which is not next to it; {len(files)} file(s) "
                "belong together: copy all of them"
            )
        shard, _ = read_weight_file(path, containers)
        missing = [key for key in keys if key not in shard]
        if missing:
            raise CheckpointError(
                f"{path} lacks {len(missing)} tensor(s) that {index.name} says it has "
                f"({some(missing)}); copy index and shards again from the same source"
            )
        tensors |= {key: shard[key] for key in keys}
    return tensors, {"index": index.name}


def _shards_of(index: Path) -> dict[str, list[str]]:
    """Return the tensors of each shard, by file name."""
    content = _read_json(index)
    file_of = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(file_of, dict) or not file_of:
        raise CheckpointError(
            f'{index} has no "weight_map"; expected {{"weight_map": {{TENSOR: FILE, ...}}}}'
        )
    files: dict[str, list[str]] = {}
    for key, name in file_of.items():
        # A name only: an index is a file of others, and reads nothing outside of its folder.
        if not isinstance(name, str) or name != Path(name).name or is_index(Path(name)):
            raise CheckpointError(
                f"{index}: {key} is listed in {name!r}; expected the name of a file next to "
                "the index"
            )
        files.setdefault(name, []).append(key)
    return files


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); copy it again") from None
