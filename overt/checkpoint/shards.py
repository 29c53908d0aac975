"""Checkpoints of sharded models: each process saves its share, any number of processes load it.

torch.distributed.checkpoint plans who saves what, and which pieces a process has to read. Its own
files need a pickle to be opened, so the bytes and the index lie here in forms that run nothing:

step_00001000/   rank_00000.safetensors ...   the pieces of each process, of all parts
                 shards.json                  where the pieces of every tensor lie
                 and the rest as in a folder of one process (see storage.py)
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future
from torch.optim import Optimizer

from overt.checkpoint import optimizer_state, storage
from overt.checkpoint.tensor_files import DTYPE_NAMES, Bytes, TensorFile, read_header
from overt.checkpoint.weights import FOLDER_PARTS, clean_keys
from overt.distributed import get_rank
from overt.errors import CheckpointError

DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


class Piece(NamedTuple):
    """A box of one tensor: where it begins, how large it is, and under which key of which file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    key: str


@dataclass(frozen=True)
class Saved:
    """One tensor of a checkpoint, in pieces."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: list[Piece]


# --- saving ----------------------------------------------------------------------------------


def share_file(rank: int) -> str:
    """The file of one process's pieces."""
    return f"rank_{rank:05d}.safetensors"


def collect(
    model: nn.Module, ema: nn.Module | None, moments: Mapping[str, Tensor] | None
) -> tuple[TensorFile, Bytes | None]:
    """This process's share of the state, and the index on the main one. All call this together."""
    state = {f"optimizer/{name}": tensor for name, tensor in (moments or {}).items()}
    for part, module in (("model", model), ("ema", ema)):
        state |= {f"{part}/{name}": tensor for name, tensor in _named(module).items()}
    writer = Collector()
    # Tensors that all processes have, such as buffers, are the main one's: as in a plain folder.
    planner = DefaultSavePlanner(flatten_state_dict=False, dedup_save_to_lowest_rank=True)
    save(state, storage_writer=writer, planner=planner)
    return TensorFile(writer.tensors), writer.index


class Collector(StorageWriter):
    """Takes what the plan gives this process to save. The manager writes it when it likes to."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.index: Bytes | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.tensors, self.index = {}, None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        assert is_coordinator == (get_rank() == 0)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results = []
        for item in plan.items:
            assert item.type is not WriteItemType.BYTE_IO, f"{item.index.fqn} is no tensor"
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, Tensor)
            if tensor.numel() == 0 and tensor.ndim > 0:
                continue  # fewer rows than processes: this one has none
            key = "@".join([item.index.fqn, "x".join(map(str, item.index.offset or ()))])
            self.tensors[key] = tensor.detach()
            place = {"file": share_file(get_rank()), "key": key}
            results.append(WriteResult(item.index, tensor.nbytes, place))
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        places = {result.index: result.storage_data for part in results for result in part}
        tensors = {}
        for name, about in metadata.state_dict_metadata.items():
            assert isinstance(about, TensorStorageMetadata)
            indices = [MetadataIndex(name, chunk.offsets) for chunk in about.chunks]
            tensors[name] = {
                "shape": list(about.size),
                "dtype": DTYPE_NAMES[about.properties.dtype],
                "pieces": [
                    {"offsets": list(chunk.offsets), "sizes": list(chunk.sizes), **places[index]}
                    for index, chunk in zip(indices, about.chunks, strict=True)
                    if index in places
                ],
            }
        self.index = Bytes(json.dumps(tensors, indent=1).encode())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # it is handed over, never found by a path


def _named(module: nn.Module | None) -> dict[str, Tensor]:
    """A module's tensors under the bare module's names."""
    state = {} if module is None else module.state_dict()
    names = clean_keys(state, "the model")
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(
                f"{key} of {type(module).__name__} is a {type(value).__name__}, not a tensor; a "
                "checkpoint holds tensors. Return a tensor from get_extra_state, or keep it in "
                "the configuration."
            )
    return {names[key]: value for key, value in state.items()}


# --- reading ---------------------------------------------------------------------------------


def folder_parts(folder: Path) -> list[str]:
    """What the checkpoint holds: model, and maybe ema and optimizer."""
    present = {name.partition("/")[0] for name in read_index(folder)}
    return [part for part in FOLDER_PARTS if part in present]


def read_index(folder: Path) -> dict[str, Saved]:
    """Every tensor of a checkpoint as `part/name`, without its values; of a plain folder too."""
    files: dict[str, Any] = storage.read_manifest(folder)["files"]
    if storage.SHARDS in files:
        return _parse_index(folder, files)
    found: dict[str, Saved] = {}
    for part in FOLDER_PARTS:
        file = f"{part}.safetensors"
        if file not in files:
            continue
        header = read_header(folder / file)
        tied = json.loads(header.pop("__metadata__", {}).get("overt.tied", "{}"))
        for name, key in {**{key: key for key in header}, **tied}.items():
            shape = tuple(header[key]["shape"])
            piece = Piece((0,) * len(shape), shape, file, key)
            found[f"{part}/{name}"] = Saved(shape, DTYPES[header[key]["dtype"]], [piece])
    return found


def _parse_index(folder: Path, files: Mapping[str, Any]) -> dict[str, Saved]:
    path = folder / storage.SHARDS
    try:
        content = json.loads(path.read_bytes())
        index = {
            name: Saved(
                tuple(map(int, about["shape"])),
                DTYPES[about["dtype"]],
                [
                    Piece(
                        tuple(map(int, piece["offsets"])),
                        tuple(map(int, piece["sizes"])),
                        piece["file"],
                        piece["key"],
                    )
                    for piece in about["pieces"]
                ],
            )
            for name, about in content.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({type(error).__name__}: {error}); use an older checkpoint"
        ) from None
    for name, saved in index.items():
        for piece in saved.pieces:
            # Only files that the manifest vouches for: such a name cannot leave the folder.
            if piece.file not in files or not _fits(piece, saved.shape):
                raise CheckpointError(
                    f"{path}: {name} has a piece {piece} that its shape {saved.shape} or the "
                    "manifest does not allow; use an older checkpoint"
                )
    return index


def _fits(piece: Piece, shape: tuple[int, ...]) -> bool:
    return len(piece.offsets) == len(piece.sizes) == len(shape) and all(
        start >= 0 and size > 0 and start + size <= whole
        for start, size, whole in zip(piece.offsets, piece.sizes, shape, strict=True)
    )


class Reader(StorageReader):
    """Hands out pieces of a checkpoint folder, sharded or plain."""

    def __init__(self, folder: Path, index: dict[str, Saved]) -> None:
        self.folder, self.index = folder, index
        self.places = {
            MetadataIndex(name, torch.Size(piece.offsets)): piece
            for name, saved in index.items()
            for piece in saved.pieces
        }

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        assert checkpoint_id is None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        described: dict[str, Any] = {
            name: TensorStorageMetadata(
                TensorProperties(dtype=saved.dtype),
                torch.Size(saved.shape),
                [
                    ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.sizes))
                    for piece in saved.pieces
                ],
            )
            for name, saved in self.index.items()
        }
        return Metadata(described)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        assert metadata.state_dict_metadata.keys() == self.index.keys()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        from safetensors import safe_open

        items: dict[str, list[Any]] = {}
        for item in plan.items:
            items.setdefault(self.places[item.storage_index].file, []).append(item)
        for file, wanted in items.items():
            with safe_open(self.folder / file, framework="pt") as opened:
                for item in wanted:
                    piece = self.places[item.storage_index]
                    if piece.sizes == tuple(item.lengths):
                        values = opened.get_tensor(piece.key)
                    else:
                        box = zip(item.storage_offsets, item.lengths, strict=True)
                        values = opened.get_slice(piece.key)[
                            tuple(slice(start, start + length) for start, length in box)
                        ]
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(values)
                    planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


def read_part(folder: Path, part: str) -> dict[str, Tensor]:
    """All tensors of a part, whole and on the CPU, as if one process had saved them."""
    index = read_index(folder)
    names = [name for name in index if name.startswith(f"{part}/")]
    found = {name: torch.empty(index[name].shape, dtype=index[name].dtype) for name in names}
    _fill(folder, index, found)
    return {name.removeprefix(f"{part}/"): tensor for name, tensor in found.items()}


def restore(
    folder: Path,
    described: dict[str, Any] | None,
    model: nn.Module,
    ema: nn.Module | None,
    optimizer: Optimizer | None,
) -> None:
    """Fill this process's shares of the state from a folder of any number of processes."""
    index = read_index(folder)
    targets: dict[str, Tensor] = {}
    for part, module in (("model", model), ("ema", ema)):
        if module is not None:
            named = {f"{part}/{name}": tensor for name, tensor in _named(module).items()}
            _refuse_other_model(folder, part, index, named)
            targets |= named
    moments: dict[str, Tensor] = {}
    if optimizer is not None:
        names = optimizer_state.parameter_names(model, optimizer)
        owners = {name: parameter for parameter, name in names.items()}
        for key, saved in index.items():
            part, _, entry = key.partition("/")
            owner = owners.get(entry.rpartition("/")[0])
            if part == "optimizer" and owner is not None:
                moments[key] = _room_for(saved, owner)
    _fill(folder, index, {**targets, **moments})
    if optimizer is not None:
        assert described is not None
        values = {key.removeprefix("optimizer/"): tensor for key, tensor in moments.items()}
        optimizer_state.restore(model, optimizer, values, described)


def _room_for(saved: Saved, parameter: Tensor) -> Tensor:
    """Memory for an entry of the optimizer: in shares like its parameter where it has its shape."""
    if saved.shape == tuple(parameter.shape) and parameter.ndim > 0:
        return torch.empty_like(parameter.detach(), dtype=saved.dtype)
    return torch.empty(saved.shape, dtype=saved.dtype)


def _fill(folder: Path, index: dict[str, Saved], targets: dict[str, Tensor]) -> None:
    """Read into the memory of `targets`, of each what this process has of it."""
    for name in targets:
        pieces = index[name].pieces
        held = sum(torch.Size(piece.sizes).numel() for piece in pieces)
        if held != torch.Size(index[name].shape).numel():
            raise CheckpointError(f"{folder}: {name} is not whole; use an older checkpoint")
    with warnings.catch_warnings():
        # Each process reads for itself, on purpose: torch supposes an oversight.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(dict(targets), storage_reader=Reader(folder, index), no_dist=True)


def _refuse_other_model(
    folder: Path, part: str, index: Mapping[str, Saved], here: Mapping[str, Tensor]
) -> None:
    there = {name for name in index if name.startswith(f"{part}/")}
    wrong = [f"{name}: only in the checkpoint" for name in sorted(there - here.keys())]
    wrong += [f"{name}: only in the model" for name in sorted(here.keys() - there)]
    for name in sorted(there & here.keys()):
        if index[name].shape != tuple(here[name].shape):
            sizes = f"{index[name].shape} in the checkpoint, {tuple(here[name].shape)}"
            wrong.append(f"{name}: {sizes} in the model")
    if wrong:
        more = f"\n  and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise CheckpointError(
            f"{folder} is not of this model:\n  " + "\n  ".join(wrong[:8]) + more + "\nA resumed "
            "run needs the sizes it was saved with; to start another run from these weights use "
            "init_from."
        )
