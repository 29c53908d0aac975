"""The index of a checkpoint: every tensor by part and name, and which file holds which chunk of it.

Of a sharded checkpoint it is shards.json; of a plain folder, the headers of its files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from overt.checkpoint.manifest import PARTS, SHARDS, read_manifest
from overt.checkpoint.tensor_files import DTYPE_NAMES, Bytes, read_header
from overt.errors import CheckpointError

DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


class Chunk(NamedTuple):
    """A box of one tensor: where it begins, how large it is, and under which key of which file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    key: str


@dataclass(frozen=True)
class SavedTensor:
    """One tensor of a checkpoint, in chunks."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: list[Chunk]


Index = dict[str, SavedTensor]  # by PART/NAME


def read_index(folder: Path) -> Index:
    """List every tensor of a checkpoint as `part/name`, without its values; of a plain one too."""
    files: dict[str, Any] = read_manifest(folder)["files"]
    if SHARDS in files:
        return _parse(folder / SHARDS, files)
    index: Index = {}
    for part in PARTS:
        file = f"{part}.safetensors"
        if file not in files:
            continue
        header = read_header(folder / file)
        try:
            tied = json.loads(header.pop("__metadata__", {}).get("overt.tied", "{}"))
            for name, key in {**{key: key for key in header}, **tied}.items():
                shape = tuple(header[key]["shape"])
                chunk = Chunk((0,) * len(shape), shape, file, key)
                index[f"{part}/{name}"] = SavedTensor(shape, DTYPES[header[key]["dtype"]], [chunk])
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{folder / file} was not written by overt ({type(error).__name__}: {error}); use "
                "an older checkpoint"
            ) from None
    return index


def write_index(index: Index) -> Bytes:
    """Return the content of shards.json."""
    described = {
        name: {
            "shape": list(saved.shape),
            "dtype": DTYPE_NAMES[saved.dtype],
            "pieces": [  # the format's name for chunks
                {
                    "offsets": list(chunk.offsets),
                    "sizes": list(chunk.sizes),
                    "file": chunk.file,
                    "key": chunk.key,
                }
                for chunk in saved.chunks
            ],
        }
        for name, saved in index.items()
    }
    return Bytes(json.dumps(described, indent=1).encode())


def _parse(path: Path, files: Mapping[str, Any]) -> Index:
    try:
        content = json.loads(path.read_bytes())
        index = {
            name: SavedTensor(
                tuple(map(int, about["shape"])),
                DTYPES[about["dtype"]],
                [
                    Chunk(
                        tuple(map(int, chunk["offsets"])),
                        tuple(map(int, chunk["sizes"])),
                        chunk["file"],
                        chunk["key"],
                    )
                    for chunk in about["pieces"]
                ],
            )
            for name, about in content.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({type(error).__name__}: {error}); use an older checkpoint"
        ) from None
    for name, saved in index.items():
        for chunk in saved.chunks:
            # Only files that the manifest vouches for: such a name cannot leave the folder.
            if chunk.file not in files or not _fits(chunk, saved.shape):
                raise CheckpointError(
                    f"{path}: {name} has a chunk {chunk} that its shape {saved.shape} or the "
                    "manifest does not allow; use an older checkpoint"
                )
    return index


def _fits(chunk: Chunk, shape: tuple[int, ...]) -> bool:
    return len(chunk.offsets) == len(chunk.sizes) == len(shape) and all(
        start >= 0 and size > 0 and start + size <= length
        for start, size, length in zip(chunk.offsets, chunk.sizes, shape, strict=True)
    )
