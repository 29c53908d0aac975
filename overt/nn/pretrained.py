"""Weights of a file by name, for parts of a model that come from elsewhere.

Reads a checkpoint folder of overt, a folder of Hugging Face, a safetensors file, or a file of
torch.save; runs no code.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from overt.errors import CheckpointError
from overt.files.weight_files import clean_keys
from overt.files.weight_folders import read_weight_file, weights_in

# In a file with several of these, the first is meant; a method with a teacher publishes that.
CONTAINERS = ("state_dict", "model", "model_state", "model_state_dict", "teacher")


def read_weights(path: str | Path, key: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint under the bare model's names; the setting `key` names it."""
    file = weight_file(path, key)
    try:
        tensors, _ = read_weight_file(file, CONTAINERS)
        names = clean_keys(tensors, str(file))
    except CheckpointError as error:  # its message starts with the file
        raise CheckpointError(f"{key}={error}") from None
    if not tensors:
        raise CheckpointError(f"{key}={path}: {file} holds no tensors")
    return {names[name]: value for name, value in tensors.items()}


def weight_file(path: str | Path, key: str) -> Path:
    """Return the file that `read_weights` reads, or refuse; nothing is read."""
    file = Path(path)
    if file.is_dir():
        if (file / "shards.json").is_file():
            raise CheckpointError(
                f"{key}={path}: a sharded checkpoint, of training.strategy=fsdp, but one file is "
                f"needed here; write it by `overt ckpt export {path} --to safetensors --output "
                f"FILE.safetensors`, and set {key}=FILE.safetensors"
            )
        average = file / "ema.safetensors"
        file = average if average.is_file() else weights_in(file) or file / "model.safetensors"
    if not file.is_file():
        raise CheckpointError(f"{key}={path}: no such checkpoint (looked for {file})")
    return file
