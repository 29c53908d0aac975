"""The tensors of a module by the bare module's names, and memory that has several names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from overt.errors import CheckpointError
from overt.files.weight_files import clean_keys


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's tensors under the names they have without DDP, compilation and so on."""
    state = module.state_dict()
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(
                f"{key} of {type(module).__name__} is a {type(value).__name__}, not a tensor; a "
                "checkpoint holds tensors. Return a tensor from get_extra_state, or keep it in "
                "the configuration."
            )
    names = clean_keys(state, "the model")
    return {names[key]: value for key, value in state.items()}


def is_sharded(model: nn.Module) -> bool:
    """Tell whether this process holds only its shard of the model's parameters (FSDP)."""
    # By what a DTensor can do: importing its class takes a second.
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


def memory_of(tensor: Tensor) -> tuple[Any, ...]:
    """Identify the memory of a tensor: tied ones have the same."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def split_tied(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each memory once, and for every further name of it the name under which it is kept."""
    unique: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        owner = first.setdefault(memory_of(tensor), name) if tensor.numel() > 0 else name
        if owner == name:
            unique[name] = tensor
        else:
            aliases[name] = owner
    return unique, aliases
