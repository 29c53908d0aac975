"""Weights from any checkpoint into a model: overt's own, safetensors, and torch files of others.

Wrapper prefixes are taken off, what did not fit is reported, and nothing in a file is ever run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from torch import Tensor, nn

from overt.checkpoint import storage
from overt.errors import CheckpointError
from overt.files.weight_files import clean_keys as clean_keys
from overt.files.weight_files import find_weights, read_torch_file, refuse_collisions, some
from overt.files.weight_files import is_safetensors as is_safetensors
from overt.files.weight_files import read_safetensors as read_safetensors

# Tables that follow from the sizes of a model: its own are kept where the file's do not fit.
SIZE_DEPENDENT = ("time_emb", "pos_emb")
PARTS = ("model", "ema")
FOLDER_PARTS = (*PARTS, "optimizer")


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
            lines.append(f"  {name}: {len(keys)}" + (f" ({some(keys)})" if keys else ""))
        return "\n".join(lines)


def load_checkpoint(
    path: str | Path,
    model: nn.Module,
    strict: bool = False,
    *,
    part: str = "model",
    allow_shape_mismatch: bool = False,
) -> LoadReport:
    """Load the weights of any checkpoint into `model`; `strict` refuses missing and unexpected.

    A model that knows the keys and sizes of others says so by `adapt_tensors(tensors, settings)`:
    tensors by clean keys, and the configuration of the run where the checkpoint is overt's own.
    """
    tensors, rest = read_tensors(path, part)
    adapt = getattr(model, "adapt_tensors", None)
    if adapt is not None:
        names = clean_keys(tensors, str(path))
        try:
            tensors = adapt(
                {names[key]: value for key, value in tensors.items()}, rest.get("settings")
            )
        except CheckpointError as error:  # the model does not know the file's name
            raise CheckpointError(f"{path}: {error}") from None
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
            f"The file has {some(tensors)}; the model has {some(own)}. Check the model's "
            "configuration, or give the checkpoint that belongs to it."
        )
    if wrong and not allow_shape_mismatch:
        raise CheckpointError(
            f"{source}: {len(wrong)} tensor(s) have another shape than in the model:\n  "
            + "\n  ".join(wrong)
            + "\nSet the sizes in the configuration to those of the checkpoint; a folder of overt "
            "has them in its config.yaml, and `overt evaluate` without recipe= takes them from "
            "there. In Python, allow_shape_mismatch=True keeps the model's own values for these."
        )
    if strict and (report.missing or report.unexpected):
        raise CheckpointError(
            f"{report}\nWith strict=True every key must be on both sides. Check the model's "
            "configuration, or load with strict=False."
        )
    model.load_state_dict(chosen, strict=False)
    return report


def _match_leading_model(cleaned: dict[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """Take a leading `model.` off the file's keys, or put one on, where that makes more match."""
    candidates = [
        cleaned,
        {key: clean.removeprefix("model.") for key, clean in cleaned.items()},
        {key: f"model.{clean}" for key, clean in cleaned.items()},
    ]
    best = max(candidates, key=lambda names: sum(clean in here for clean in names.values()))
    refuse_collisions(best, "the checkpoint, matched to the model")
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
    return find_weights(read_torch_file(path), path)


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not (folder / storage.MANIFEST).exists() and (folder / "latest").exists():
        raise CheckpointError(
            f"{folder} holds several checkpoints; name one, such as {folder / 'latest'} or "
            f"{folder / 'best'}"
        )
    return storage.read_manifest(folder)


def _read_folder(folder: Path, part: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    manifest = _read_manifest(folder)
    found = storage.verify(folder)
    if not found.good:
        raise CheckpointError(
            f"{folder} is broken ({found}); use an older checkpoint beside it, or copy it again "
            "from where it came"
        )
    rest: dict[str, Any] = {"manifest": manifest}
    if "config.yaml" in manifest["files"]:
        rest["settings"] = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    return read_part(folder, part), rest


def read_part(folder: Path, part: str) -> dict[str, Tensor]:
    """The tensors of one part of a checkpoint folder: model, ema or optimizer. Not checked anew."""
    if part not in folder_parts(folder):
        raise CheckpointError(
            f"{folder} has no {part} part; it holds {', '.join(folder_parts(folder))}"
        )
    if storage.SHARDS in storage.read_manifest(folder)["files"]:
        from overt.checkpoint import shards

        return shards.read_part(folder, part)
    return read_safetensors(folder / f"{part}.safetensors")[0]


def folder_parts(folder: Path) -> list[str]:
    """What a checkpoint folder holds: model, and maybe ema and optimizer."""
    files = _read_manifest(folder)["files"]
    if storage.SHARDS in files:
        from overt.checkpoint import shards

        return shards.folder_parts(folder)
    return [part for part in FOLDER_PARTS if f"{part}.safetensors" in files]
