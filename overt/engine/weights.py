"""Weights from any checkpoint into a model: overt's own, safetensors, and torch files of others.

Wrapper prefixes are taken off, what did not fit is reported, and nothing in a file is ever run.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt.engine import storage
from overt.errors import CheckpointError

# What DDP, torch.compile, FSDP and activation checkpointing put into the middle of a key.
WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
# Where training scripts keep the weights inside a larger dictionary.
CONTAINERS = ("model", "state_dict", "model_state", "model_state_dict")
# Tables that follow from the sizes of a model: its own are kept where the file's do not fit.
SIZE_DEPENDENT = ("time_emb", "pos_emb")
PARTS = ("model", "ema")


@dataclass
class LoadReport:
    """What became of every tensor of a file and of every key of a model."""

    source: str
    mapped: list[tuple[str, str]] = field(default_factory=list)  # (key in file, key in model)
    missing: list[str] = field(default_factory=list)  # keys of the model that the file lacks
    unexpected: list[str] = field(default_factory=list)  # keys of the file that the model lacks
    skipped: list[str] = field(default_factory=list)  # shapes differ; the model's own are kept

    @property
    def renamed(self) -> int:
        return sum(there != here for there, here in self.mapped)

    def __str__(self) -> str:
        lines = [f"{self.source}: {len(self.mapped)} tensors loaded, {self.renamed} renamed"]
        for name in ("missing", "unexpected", "skipped"):
            keys: list[str] = getattr(self, name)
            lines.append(f"  {name}: {len(keys)}" + (f" ({_some(keys)})" if keys else ""))
        return "\n".join(lines)


def load_checkpoint(
    path: str | Path,
    model: nn.Module,
    strict: bool = False,
    *,
    part: str = "model",
    allow_shape_mismatch: bool = False,
) -> LoadReport:
    """Load the weights of any checkpoint into `model`; `strict` refuses missing and unexpected."""
    tensors, _ = read_tensors(path, part)
    return load_tensors(
        tensors, model, strict, source=str(path), allow_shape_mismatch=allow_shape_mismatch
    )


def load_tensors(
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    strict: bool = False,
    *,
    source: str,
    allow_shape_mismatch: bool = False,
) -> LoadReport:
    """Load named tensors into `model`, whatever wrappers either side has been through."""
    own = {key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
    here = {clean: key for key, clean in clean_keys(own, "the model").items()}
    there = _match_leading_model(clean_keys(tensors, source), here)

    report = LoadReport(source)
    chosen: dict[str, Tensor] = {}
    wrong: list[str] = []
    for key, clean in there.items():
        if clean not in here:
            report.unexpected.append(key)
        elif tensors[key].shape == own[here[clean]].shape:
            chosen[here[clean]] = tensors[key]
            report.mapped.append((key, here[clean]))
        else:
            report.skipped.append(here[clean])
            if not any(name in clean for name in SIZE_DEPENDENT):
                sizes = f"{tuple(tensors[key].shape)} in the file, {tuple(own[here[clean]].shape)}"
                wrong.append(f"{key}: {sizes} in the model")
    report.missing = _without_tied(
        [key for key in own if key not in chosen and key not in report.skipped], chosen, own
    )

    if not report.mapped:
        raise CheckpointError(
            f"{source} is a checkpoint of another model: none of its {len(tensors)} tensors fits. "
            f"The file has {_some(tensors)}; the model has {_some(own)}. Check the model's "
            "configuration, or give the checkpoint that belongs to it."
        )
    if wrong and not allow_shape_mismatch:
        raise CheckpointError(
            f"{source}: {len(wrong)} tensor(s) have another shape than in the model:\n  "
            + "\n  ".join(wrong)
            + "\nSet the sizes in the model's configuration to those of the checkpoint, or pass "
            "allow_shape_mismatch=True to keep the model's own values for these."
        )
    if strict and (report.missing or report.unexpected):
        raise CheckpointError(
            f"{report}\nWith strict=True every key must be on both sides. Check the model's "
            "configuration, or load with strict=False."
        )
    model.load_state_dict(chosen, strict=False)
    return report


def clean_keys(keys: Iterable[str], source: str) -> dict[str, str]:
    """Every key without its wrappers; refused where two keys would become one."""
    cleaned = {key: clean_key(key) for key in keys}
    _refuse_collisions(cleaned, source)
    return cleaned


def clean_key(key: str) -> str:
    """The key as the bare module would name it: `model.module._orig_mod.a.weight` and so on."""
    *path, name = key.split(".")
    return ".".join([part for part in path if part not in WRAPPERS] + [name])


def _refuse_collisions(cleaned: Mapping[str, str], source: str) -> None:
    seen: dict[str, str] = {}
    for key, clean in cleaned.items():
        if clean in seen:
            raise CheckpointError(
                f"{source}: the keys {seen[clean]} and {key} both become {clean} without their "
                "wrappers; it holds two models. Keep the one you mean and save it again."
            )
        seen[clean] = key


def _match_leading_model(cleaned: dict[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """Take a leading `model.` off the file's keys, or put one on, where that makes more match."""
    candidates = [
        cleaned,
        {key: clean.removeprefix("model.") for key, clean in cleaned.items()},
        {key: f"model.{clean}" for key, clean in cleaned.items()},
    ]
    best = max(candidates, key=lambda names: sum(clean in here for clean in names.values()))
    _refuse_collisions(best, "the checkpoint, matched to the model")
    return best


def _without_tied(missing: list[str], chosen: Iterable[str], own: dict[str, Tensor]) -> list[str]:
    """A key is not missing when it is the same memory as one that was loaded."""
    loaded = {_memory(own[key]) for key in chosen if own[key].numel() > 0}
    return [key for key in missing if _memory(own[key]) not in loaded]


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def split_tied(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each memory once, and for every further name of it the name under which it is kept."""
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        owner = first.setdefault(_memory(tensor), name) if tensor.numel() > 0 else name
        if owner == name:
            kept[name] = tensor
        else:
            aliases[name] = owner
    return kept, aliases


# --- reading files ---------------------------------------------------------------------------


def read_tensors(path: str | Path, part: str = "model") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights in a checkpoint of any format, on the CPU, and whatever else it says."""
    path = Path(path)
    if part not in PARTS:
        raise CheckpointError(f"a checkpoint has the parts {' and '.join(PARTS)}, not {part!r}")
    if path.is_dir():
        return _read_folder(path, part)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}; check the path")
    if part != "model":
        raise CheckpointError(f"{path} is a single file; only overt's own folders have an EMA part")
    if is_safetensors(path):
        tensors, metadata = read_safetensors(path)
        return tensors, {"metadata": metadata}
    return _find_weights(read_torch_file(path), path)


def _read_folder(folder: Path, part: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not (folder / storage.MANIFEST).exists() and (folder / "latest").exists():
        raise CheckpointError(
            f"{folder} holds several checkpoints; name one, such as {folder / 'latest'} or "
            f"{folder / 'best'}"
        )
    manifest = storage.read_manifest(folder)
    found = storage.verify(folder)
    if not found.good:
        raise CheckpointError(
            f"{folder} is broken ({found}); use an older checkpoint beside it, or copy it again "
            "from where it came"
        )
    if f"{part}.safetensors" not in manifest["files"]:
        raise CheckpointError(
            f"{folder} has no {part} part; it holds {', '.join(sorted(manifest['files']))}"
        )
    tensors, _ = read_safetensors(folder / f"{part}.safetensors")
    return tensors, {"manifest": manifest}


def is_safetensors(path: Path) -> bool:
    """Whether a file starts like safetensors: a length, then a JSON object."""
    with path.open("rb") as file:
        start = file.read(9)
    return len(start) == 9 and start[8:] == b"{"


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a safetensors file, tied ones under all their names, and its metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is not a whole safetensors file ({error}); copy it again from where it came"
        ) from None
    for name, owner in json.loads(metadata.get("overt.tied", "{}")).items():
        tensors[name] = tensors[owner]
    return tensors, metadata


def _find_weights(content: Any, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{path} holds a {type(content).__name__}, not a dictionary of tensors; "
            "save `model.state_dict()`"
        )
    for name in CONTAINERS:
        inner = content.get(name)
        if isinstance(inner, Mapping):
            tensors, nested = _find_weights(inner, path)
            rest = {str(key): value for key, value in content.items() if key != name}
            return tensors, {**nested, **rest}
    tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise CheckpointError(
            f"{path} holds no tensors at its top level nor under {', '.join(CONTAINERS)}; "
            f"it has {_some(map(str, content)) or 'nothing'}"
        )
    return tensors, {str(key): value for key, value in content.items() if key not in tensors}


def read_torch_file(path: Path) -> Any:
    """A file of `torch.save`, read without running anything that it contains."""
    try:
        with torch.serialization.safe_globals(_harmless()):
            return torch.load(
                path,
                map_location="cpu",
                weights_only=True,
                mmap=zipfile.is_zipfile(path),
            )
    except Exception as error:  # a damaged file can make torch's reader fail in any way
        raise _refusal(path, error) from None


def _refusal(path: Path, error: Exception) -> CheckpointError:
    text = str(error) or type(error).__name__
    named = re.search(r"GLOBAL ([\w.]+)", text)
    if isinstance(error, pickle.UnpicklingError) and named is not None:
        return CheckpointError(
            f"{path} asks for {named[1]}, which could run code when loaded. Nothing of it was run. "
            "Allowed are tensors, numbers, text, lists, dictionaries, argparse.Namespace, numpy "
            "values and paths. If you trust where the file comes from, load it where it was "
            "written and save `model.state_dict()` alone."
        )
    # Without torch's advice to switch its safety off.
    reason = text.partition("WeightsUnpickler error:")[2] or text.partition(" In PyTorch 2.6")[0]
    return CheckpointError(
        f"{path} is neither a safetensors file nor a whole file of torch.save with plain values "
        f"({reason.strip().splitlines()[0]}). Nothing of it was run. Copy it again from where it "
        "came, or save `model.state_dict()` once more."
    )


def _encode_latin1(text: str, encoding: str) -> bytes:
    """How pickle writes bytes; the one encoding it uses, and no look-up of others."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"refused the text encoding {encoding!r}")
    return text.encode("latin1")


def _harmless() -> list[Any]:
    """Classes that training scripts leave in their files and that can do nothing but hold data."""
    number_types = {type(np.dtype(code)) for code in np.typecodes["All"] if code not in "OV"}
    scalar, reconstruct = np.float64(0).__reduce__()[0], np.zeros(1).__reduce__()[0]
    return [
        argparse.Namespace,
        collections.OrderedDict,
        pathlib.PosixPath,
        # Written by numpy before and since 2.0, and by Python before and since 3.13.
        (pathlib.PosixPath, "pathlib._local.PosixPath"),
        (pathlib.PosixPath, "pathlib.PosixPath"),
        *((scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
        *((reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
        np.ndarray,
        np.dtype,
        *number_types,
        (_encode_latin1, "_codecs.encode"),
    ]


def _some(keys: Iterable[str], count: int = 4) -> str:
    listed = list(keys)
    more = f" and {len(listed) - count} more" if len(listed) > count else ""
    return ", ".join(listed[:count]) + more
