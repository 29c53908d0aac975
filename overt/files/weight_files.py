"""Weights in files of any origin: safetensors, and what torch.save wrote. Nothing in them is run.

Tensors are found within the containers of training scripts; wrappers are removed from keys.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from overt.errors import CheckpointError
from overt.files import pickles

# What DDP, torch.compile, FSDP and activation checkpointing put into the middle of a key.
WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
# Where training scripts keep the weights inside a larger dictionary.
CONTAINERS = ("model", "state_dict", "model_state", "model_state_dict")


def clean_keys(keys: Iterable[str], source: str) -> dict[str, str]:
    """Return every key without its wrappers; refused where two keys would become one."""
    cleaned = {key: clean_key(key) for key in keys}
    refuse_collisions(cleaned, source)
    return cleaned


def clean_key(key: str) -> str:
    """Return a key as the bare module names it: `module._orig_mod.a.weight` is `a.weight`."""
    *path, name = key.split(".")
    return ".".join([part for part in path if part not in WRAPPERS] + [name])


def refuse_collisions(cleaned: Mapping[str, str], source: str) -> None:
    """Refuse renamed keys where two have become one."""
    owners: dict[str, str] = {}
    for key, clean in cleaned.items():
        if clean in owners:
            raise CheckpointError(
                f"{source}: the keys {owners[clean]} and {key} both become {clean} without their "
                "wrappers; it holds two models. Keep the one you mean and save it again."
            )
        owners[clean] = key


def refuse_special(path: Path) -> None:
    """Refuse a pipe or a device: opening one may block forever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CheckpointError(f"{path} is neither a file nor a folder; name a checkpoint")


def is_safetensors(path: Path) -> bool:
    """Tell whether a file starts like safetensors: a length, then a JSON object."""
    refuse_special(path)
    with path.open("rb") as file:
        start = file.read(9)
    return len(start) == 9 and start[8:] == b"{"


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file: tensors, tied ones under all their names, and its metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError, MemoryError) as error:
        _refuse_placeholder(path)
        raise CheckpointError(
            f"{path} is not a complete safetensors file ({error}); copy it again from its source"
        ) from None
    try:
        for name, owner in json.loads(metadata.get("overt.tied", "{}")).items():
            tensors[name] = tensors[owner]
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise CheckpointError(
            f"{path}: its list of tied tensors was not written by overt"
        ) from None
    return tensors, metadata


def find_weights(
    content: Any, path: Path, containers: Sequence[str] = CONTAINERS
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file's content, from within any containers, and all the rest of it.

    Several state dicts side by side become one, with their names before the keys.
    """
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{path} holds a {type(content).__name__}, not a dictionary of tensors; "
            "save `model.state_dict()`"
        )
    for name in containers:
        inner = content.get(name)
        if isinstance(inner, Mapping) and _may_hold_weights(inner, containers):
            tensors, nested = find_weights(inner, path, containers)
            metadata = {str(key): value for key, value in content.items() if key != name}
            return tensors, {**nested, **metadata}
    tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        models = {str(key): value for key, value in content.items() if _is_state_dict(value)}
        if len(models) > 1:  # the parts of a method side by side, as I-JEPA saves them
            joined = {f"{part}.{key}": models[part][key] for part in models for key in models[part]}
            return joined, {str(key): v for key, v in content.items() if str(key) not in models}
        raise CheckpointError(
            f"{path} holds no tensors at its top level nor under {', '.join(containers)}; "
            f"it has {some(map(str, content)) or 'nothing'}"
        )
    return tensors, {str(key): value for key, value in content.items() if key not in tensors}


def _may_hold_weights(inner: Mapping[Any, Any], containers: Sequence[str]) -> bool:
    """Tell weights, maybe within further containers, from a configuration of that name."""
    return any(isinstance(value, Tensor) or _is_state_dict(value) for value in inner.values()) or (
        any(isinstance(inner.get(name), Mapping) for name in containers)
    )


def _is_state_dict(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(isinstance(item, Tensor) for item in value.values())
    )


def read_torch_file(path: Path) -> Any:
    """Read a file of `torch.save` without running anything that it contains."""
    refuse_special(path)
    try:
        _refuse_exported(path)
        _refuse_compressed(path)
        with torch.serialization.safe_globals(_harmless()):
            content = torch.load(
                path,
                map_location="cpu",
                weights_only=True,
                mmap=zipfile.is_zipfile(path),
            )
        return _with_plain_arrays(content)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file can make torch's reader fail in any way
        _refuse_placeholder(path)
        raise _refusal(path, error) from None


def _refuse_exported(path: Path) -> None:
    """Refuse ONNX and TorchScript by name: they hold a program beside the weights."""
    kind = "ONNX" if path.suffix.lower() == ".onnx" else None
    if kind is None and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(Path(name).parts[1:2] == ("code",) for name in archive.namelist()):
                kind = "TorchScript"
    if kind is not None:
        raise CheckpointError(
            f"{path} is an exported model ({kind}), not a checkpoint. Nothing of it was run. Give "
            "the checkpoint that it was exported from."
        )


def _refuse_compressed(path: Path) -> None:
    """Refuse a ZIP that holds more than its own size: torch.save does not compress."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        held = sum(entry.file_size for entry in archive.infolist())
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
    if not stored or held > path.stat().st_size:
        raise CheckpointError(
            f"{path} is a compressed archive that would unpack to {held:,} bytes; torch.save does "
            "not write such files. Unpack it yourself if you trust where it comes from."
        )


def _with_plain_arrays(value: Any) -> Any:
    """The same content, with numpy's own arrays for those that checked what they were given."""
    if isinstance(value, pickles.CheckedArray):
        return np.asarray(value)
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = _with_plain_arrays(item)
    elif isinstance(value, list):
        value[:] = map(_with_plain_arrays, value)
    elif type(value) is tuple:
        return tuple(map(_with_plain_arrays, value))
    elif isinstance(value, argparse.Namespace):
        _with_plain_arrays(vars(value))
    return value


def _refuse_placeholder(path: Path) -> None:
    """Name what downloads often leave in the place of weights."""
    with path.open("rb") as file:
        start = file.read(200).lstrip()
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{path} is a pointer of Git LFS in the place of the weights; in its folder, run "
            "`git lfs pull`"
        )
    if start[:1] == b"<":
        raise CheckpointError(
            f"{path} is a web page in the place of the weights: the download was refused or asked "
            "for a login; download it in a browser"
        )


def _refusal(path: Path, error: Exception) -> CheckpointError:
    text = str(error) or type(error).__name__
    named = re.search(r"GLOBAL ([\w.]+)", text)
    if isinstance(error, pickle.UnpicklingError) and named is not None:
        return CheckpointError(
            f"{path} asks for {named[1]}, which could run code when loaded. Nothing of it was run. "
            "Allowed: tensors, numbers, text, lists, dictionaries, argparse.Namespace, numpy "
            "values and paths. If you trust where the file comes from, load it where it was "
            "written and save `model.state_dict()` alone."
        )
    # Without torch's advice to switch its safety off.
    reason = text.partition("WeightsUnpickler error:")[2] or text.partition(" In PyTorch 2.6")[0]
    return CheckpointError(
        f"{path} is neither a safetensors file nor a complete file of torch.save with plain values "
        f"({reason.strip().splitlines()[0]}). Nothing of it was run. Copy it again from where it "
        "came, or save `model.state_dict()` again."
    )


def _harmless() -> list[Any]:
    """List the classes in files of training scripts that can do nothing but hold data."""
    return [
        argparse.Namespace,
        collections.OrderedDict,
        # Written by Python before and since 3.13.
        (pathlib.PosixPath, "pathlib.PosixPath"),
        (pathlib.PosixPath, "pathlib._local.PosixPath"),
        *pickles.safe_globals(),
    ]


def some(keys: Iterable[str], count: int = 4) -> str:
    """Join the first few of many keys, for a message."""
    listed = list(keys)
    more = f" and {len(listed) - count} more" if len(listed) > count else ""
    return ", ".join(listed[:count]) + more
