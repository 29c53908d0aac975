"""Weights of a file by name, for parts of a model that come from elsewhere.

Reads a checkpoint folder of overt, a safetensors file, or a file of torch.save; runs no code.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from overt.errors import CheckpointError

CONTAINERS = ("state_dict", "model", "model_state", "model_state_dict", "teacher")
WRAPPERS = ("module.", "_orig_mod.")


def read_weights(path: str | Path, key: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint under the bare model's names; the setting `key` names it."""
    file = Path(path)
    if file.is_dir():
        average = file / "ema.safetensors"
        file = average if average.is_file() else file / "model.safetensors"
    if not file.is_file():
        raise CheckpointError(f"{key}={path}: there is no such checkpoint (looked for {file})")
    tensors = _read_safetensors(file) if file.suffix == ".safetensors" else _read_torch(file, key)
    if not tensors:
        raise CheckpointError(f"{key}={path}: there are no tensors in {file}")
    return {_bare(name): value for name, value in tensors.items()}


def _bare(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            metadata: dict[str, str] = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} is not a whole safetensors file ({error}); copy it again from where it came"
        ) from None
    for name, owner in json.loads(metadata.get("overt.tied", "{}")).items():
        tensors[name] = tensors[owner]
    return tensors


def _read_torch(file: Path, key: str) -> dict[str, Tensor]:
    try:
        content: Any = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{key}={file} is no file of torch.save with plain tensors ({reason}). Nothing of it "
            "was run. Load it where it was written and save `model.state_dict()` alone."
        ) from None
    while isinstance(content, Mapping):
        inner = next((content[name] for name in CONTAINERS if name in content), None)
        if not isinstance(inner, Mapping):
            break
        content = inner
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{key}={file} holds a {type(content).__name__}, no tensors by name")
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
