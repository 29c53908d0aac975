"""Packed images: a whole image folder in one data file, read by index from a memory map.

PACK/
  data.bin     the images, concatenated: encoded as they were, or raw RGB bytes
  index.npz    offset, size, checksum, label and name of each
  pack.json    format, classes, and the checksum of the index

This file does not import torch before the first image is read.
"""

from __future__ import annotations

import io
import json
import mmap
import multiprocessing
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overt.data.images.decode import Shrink, as_tensor, decode_image, read_file
from overt.data.images.files import Names
from overt.errors import DataError
from overt.files.atomic import new_folder, remove_left_overs
from overt.files.bounds import check_arrays
from overt.progress import report

if TYPE_CHECKING:
    from torch import Tensor

_FORMAT = 1
_DATA, _INDEX, _NOTE = "data.bin", "index.npz", "pack.json"
_JPEG_QUALITY = 95


class PackedImages:
    """The images of a pack; every read is verified by its checksum."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        note = _read_note(self.path)
        index = _read_index(self.path, note)
        self.is_raw = bool(note["raw"])
        self.classes = tuple(note["classes"])
        self.names = Names(index["name_text"], index["name_ends"])
        self.labels: NDArray[np.int64] = index["labels"]
        self._ends, self._sizes, self._sums = index["ends"], index["sizes"], index["sums"]
        self._bytes: NDArray[np.uint8] | None = None
        size = (self.path / _DATA).stat().st_size
        if size != self._ends[-1]:
            raise DataError(
                f"{self.path / _DATA} has {size} bytes, but {self._ends[-1]} were written: a "
                "truncated copy? Copy or pack it again."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_bytes": None}  # each process maps the file itself

    def read_bytes(self, index: int) -> NDArray[np.uint8]:
        """Return the bytes of an image, directly from the memory map."""
        position = range(len(self))[index]
        if self._bytes is None:
            with (self.path / _DATA).open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._bytes = np.frombuffer(mapped, np.uint8)
        record = self._bytes[self._ends[position - 1] if position else 0 : self._ends[position]]
        if zlib.crc32(record.data) != self._sums[position]:
            raise DataError(
                f"{self.path / _DATA}: the bytes of image {position}, {self.names[position]}, do "
                "not match their checksum. Copy or pack it again."
            )
        return record

    def read(self, index: int, shrink: Shrink | None = None) -> tuple[Tensor, int]:
        """Return the pixels (3, H, W) uint8 and the label of an image."""
        record = self.read_bytes(index)
        if self.is_raw:
            pixels = record.reshape(*self._sizes[index], 3).copy()  # a copy, not the file's memory
        else:
            name = f"{self.path}: {self.names[index]}"
            pixels = decode_image(record.tobytes(), name, shrink)
        return as_tensor(pixels), int(self.labels[index])


def _read_note(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise DataError(f"{path}: no such pack; `overt data pack ROOT {path}` makes one.")
    try:
        note = json.loads((path / _NOTE).read_text())
        if note["format"] != _FORMAT:
            raise DataError(
                f"{path / _NOTE}: format {note['format']}, but this version reads {_FORMAT}. Pack "
                "the images again."
            )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not a pack of images ({_NOTE}: {error}). `overt data pack ROOT OUT` makes "
            "one."
        ) from error
    return dict(note)


def _read_index(path: Path, note: dict[str, Any]) -> dict[str, NDArray[Any]]:
    try:
        check_arrays(path / _INDEX)
        content = read_file(path / _INDEX)
        if zlib.crc32(content) != note["index_sum"]:
            raise DataError(
                f"{path / _INDEX} does not match its checksum in {_NOTE}. Copy or pack it again."
            )
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{path / _INDEX}: not readable ({error}). Pack it again.") from error


class ListedImages(Protocol):
    """Image files below a root: an `ImageFolder`, or any list of files with labels."""

    @property
    def root(self) -> Path: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def labels(self) -> NDArray[np.int64]: ...
    @property
    def classes(self) -> tuple[str, ...]: ...


class Packed(NamedTuple):
    """What became of a folder."""

    images: int
    stored_bytes: int
    left_out: dict[str, str]  # unreadable images and why


class _Record(NamedTuple):
    """One image to be packed."""

    content: bytes
    size: tuple[int, int]  # (height, width)
    problem: str  # why it cannot be packed, or nothing


def _prepare(path: Path, side: int | None, raw: bool) -> _Record:
    try:
        content = read_file(path)
        pixels = decode_image(content, str(path))
    except DataError as error:
        return _Record(b"", (0, 0), str(error))
    if side is not None and min(pixels.shape[:2]) > side:
        pixels = _shrink(pixels, side)
        if not raw:
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, "JPEG", quality=_JPEG_QUALITY)
            content = stream.getvalue()
    return _Record(pixels.tobytes() if raw else content, pixels.shape[:2], "")


def _shrink(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Scale (H, W, 3) so that its shorter side has `side` pixels."""
    height, width = pixels.shape[:2]
    factor = side / min(height, width)
    size = (max(round(width * factor), side), max(round(height * factor), side))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))


def pack_images(
    images: ListedImages,
    out: Path | str,
    side: int | None = None,
    raw: bool = False,
    workers: int = 0,
) -> Packed:
    """Write the images of a folder as a pack, atomically; unreadable ones are skipped.

    Files are stored as they are. `side` shrinks images whose shorter side is larger (JPEG of
    quality 95); `raw` stores pixels instead of files: larger, but without decoding.
    """
    prepare = partial(_prepare, side=side, raw=raw)
    paths = (images.root / name for name in images.names)
    with _new_pack(out) as folder:
        records = _map_ordered(prepare, paths, workers)
        packed = _fill(folder, records, images.names, images.labels, images.classes, raw)
        if packed.images == 0:
            raise DataError(
                f"none of the {len(images.names)} images of {images.root} can be read, the first "
                f"because: {next(iter(packed.left_out.values()))}"
            )
    return packed


def pack_arrays(
    images: NDArray[np.uint8],  # (n, H, W, 3)
    labels: NDArray[np.int64],  # (n,), -1 without a class
    names: Sequence[str],
    classes: tuple[str, ...],
    out: Path | str,
) -> Packed:
    """Write images in memory as a pack of raw pixels, atomically."""
    size = (images.shape[1], images.shape[2])
    records = (_Record(image.tobytes(), size, "") for image in images)
    with _new_pack(out) as folder:
        return _fill(folder, records, names, labels, classes, raw=True)


@contextmanager
def _new_pack(out: Path | str) -> Iterator[Path]:
    """Yield a hidden folder that is renamed to `out` on success."""
    out = Path(out)
    if out.exists():
        raise DataError(f"{out} exists and is not overwritten. Choose another name, or remove it.")
    remove_left_overs(out.parent)
    with new_folder(out) as folder:
        yield folder


def _fill(
    folder: Path,
    records: Iterable[_Record],
    all_names: Sequence[str],
    labels: NDArray[np.int64],
    classes: tuple[str, ...],
    raw: bool,
) -> Packed:
    packed_indices: list[int] = []
    ends: list[int] = []
    sizes: list[tuple[int, int]] = []
    sums: list[int] = []
    left_out: dict[str, str] = {}
    with (folder / _DATA).open("wb") as file:
        for index, record in enumerate(records):
            if record.problem:
                left_out[all_names[index]] = record.problem
            else:
                file.write(record.content)
                packed_indices.append(index)
                ends.append(file.tell())
                sizes.append(record.size)
                sums.append(zlib.crc32(record.content))
            report("packing images", index + 1, len(all_names))
        _to_disk(file)
    names = Names.pack(all_names[index] for index in packed_indices)
    index_file = io.BytesIO()
    np.savez(
        index_file,
        ends=np.array(ends, np.int64),
        sizes=np.array(sizes, np.int32),
        sums=np.array(sums, np.uint32),
        labels=labels[packed_indices],
        name_text=names.text,
        name_ends=names.ends,
    )
    note = {
        "format": _FORMAT,
        "images": len(packed_indices),
        "raw": raw,
        "index_sum": zlib.crc32(index_file.getvalue()),
        "left_out": left_out,
        "classes": classes,
    }
    for name, content in (
        (_INDEX, index_file.getvalue()),
        (_NOTE, json.dumps(note, indent=2).encode() + b"\n"),
    ):
        with (folder / name).open("wb") as file:
            file.write(content)
            _to_disk(file)
    return Packed(len(packed_indices), ends[-1] if ends else 0, left_out)


def _map_ordered(
    prepare: Callable[[Path], _Record], paths: Iterable[Path], workers: int
) -> Iterator[_Record]:
    if workers == 0:
        yield from map(prepare, paths)
        return
    with multiprocessing.get_context("forkserver").Pool(workers) as pool:
        yield from pool.imap(prepare, paths, chunksize=16)


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
