"""Sequences with tracks as one file each, SEQ.npz, which loads faster than a folder of PNGs.

A file is a plain archive of NumPy arrays, stored without compression: `coords` (N, T, 2) float32,
`occluded` (N, T) bool, and one frame each in `frame_000`, ...: pixels (H, W, 3) uint8, or the bytes
of an image file. Every array has a checksum. Folders of Kubric's layout are read here too, so a
data set may be either.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overt.checks import one_of
from overt.data.images.decode import decode_image
from overt.data.tracking import kubric
from overt.data.tracking.kubric import Tracks
from overt.errors import DataError
from overt.files.atomic import new_file, remove_left_overs
from overt.files.bounds import check_archive
from overt.progress import report

SUFFIX = ".npz"
STORAGES = ("raw", "files", "jpeg")

_FRAME = re.compile(r"frame_[0-9]{1,9}")
_REMEDY = "Copy or pack the sequence again."


def is_sequence_root(root: Path | str) -> bool:
    """Return whether the folder has sequences with tracks, in Kubric's layout."""
    return any(Path(root).glob("*/frames")) and any(Path(root).glob("*/*.npy"))


def find_sequences(root: Path | str) -> list[Path]:
    """Return the sequences under `root`, sorted: packed files if there are any, else folders."""
    root = Path(root)
    files = root.glob(f"*{SUFFIX}") if root.is_dir() else ()
    packed = sorted(path for path in files if path.name[0] != ".")  # as macOS leaves them behind
    return packed or kubric.list_sequences(root)


def read_tracks(sequence: Path) -> Tracks:
    """Return the tracks of a sequence, packed or a folder."""
    if sequence.suffix != SUFFIX:
        return kubric.read_tracks(sequence)
    with _open(sequence) as archive:
        arrays = {name: _array(archive, name, sequence) for name in ("coords", "occluded")}
        frames = len(_frame_names(archive))
    coords = kubric.read_coords(sequence, arrays["coords"], _REMEDY)
    occluded = arrays["occluded"]
    occluded = kubric.read_occluded(sequence, "occluded", occluded, coords.shape[:2], _REMEDY)
    if coords.shape[1] != frames:
        raise DataError(
            f"{sequence}: coords of shape {coords.shape} for {frames} frames. {_REMEDY}"
        )
    return Tracks(coords, ~occluded)


def read_frames(sequence: Path, indices: Iterable[int]) -> NDArray[np.uint8]:
    """Return only the requested frames, as RGB (T, 3, H, W)."""
    if sequence.suffix != SUFFIX:
        return kubric.read_frames(kubric.frame_paths(sequence), indices)
    frames = []
    with _open(sequence) as archive:
        names = _frame_names(archive)
        for index in indices:
            if index >= len(names):
                raise DataError(
                    f"{sequence}: it has {len(names)} frames, not {index + 1}. {_REMEDY}"
                )
            frame = _array(archive, names[index], sequence)
            if frame.ndim == 1:  # an image file
                frame = decode_image(frame.tobytes(), f"{sequence}, {names[index]}")
            frames.append(frame)
    sizes = sorted({frame.shape for frame in frames})
    kinds = {frame.dtype for frame in frames}
    is_rgb = len(sizes[0]) == 3 and sizes[0][2] == 3 and 0 not in sizes[0]
    if len(sizes) > 1 or not is_rgb or kinds != {np.dtype(np.uint8)}:
        raise DataError(
            f"{sequence}: frames of shapes {', '.join(map(str, sizes))} and types "
            f"{', '.join(sorted(map(str, kinds)))}; expected one shape (height, width, 3), uint8. "
            f"{_REMEDY}"
        )
    return np.stack([frame.transpose(2, 0, 1) for frame in frames])


class Packed(NamedTuple):
    """Outcome of packing a folder of sequences."""

    written: list[Path]
    kept: int  # were there already
    left_out: dict[str, str]  # sequences that cannot be read, and why


def pack_sequences(
    root: Path | str,
    out: Path | str,
    storage: str = "raw",
    quality: int = 95,
) -> Packed:
    """Write every sequence folder of `root` as one file in `out`; existing ones are kept.

    `raw` stores pixels, which need no decoding. `files` stores the image files as they are; `jpeg`
    encodes frames again, which is small but changes them slightly.
    """
    one_of("storage", storage, STORAGES)
    out = Path(out)
    sequences = kubric.list_sequences(root)
    out.mkdir(parents=True, exist_ok=True)
    remove_left_overs(out)
    written: list[Path] = []
    left_out: dict[str, str] = {}
    skipped = 0
    for index, sequence in enumerate(sequences):
        target = out / f"{sequence.name}{SUFFIX}"
        if target.exists():
            skipped += 1
        else:
            try:
                _write(target, _contents(sequence, storage, quality))
                written.append(target)
            except DataError as error:
                left_out[sequence.name] = str(error)
        report("packing sequences", index + 1, len(sequences))
    if not written and not skipped:
        raise DataError(
            f"none of the {len(sequences)} sequences of {root} can be read, the first because: "
            f"{next(iter(left_out.values()))}"
        )
    return Packed(written, skipped, left_out)


def _contents(sequence: Path, storage: str, quality: int) -> dict[str, NDArray[Any]]:
    tracks = kubric.read_tracks(sequence)
    paths = kubric.frame_paths(sequence)
    # Everything is decoded once, even if stored as it is, so that broken files are found now.
    frames = kubric.read_frames(paths, range(len(paths)))
    stored: list[NDArray[np.uint8]] = [
        np.ascontiguousarray(frame.transpose(1, 2, 0)) for frame in frames
    ]
    if storage == "files":
        stored = [np.frombuffer(path.read_bytes(), np.uint8) for path in paths]
    elif storage == "jpeg":
        stored = [_jpeg(frame, quality) for frame in stored]
    named = {f"frame_{index:03d}": frame for index, frame in enumerate(stored)}
    return {"coords": tracks.coords_xy, "occluded": ~tracks.visible, **named}


def _jpeg(frame: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    stream = io.BytesIO()
    Image.fromarray(frame).save(stream, "JPEG", quality=quality, subsampling=0)
    return np.frombuffer(stream.getvalue(), np.uint8)


def _write(target: Path, arrays: dict[str, NDArray[Any]]) -> None:
    with new_file(target, durable=True) as hidden, hidden.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _open(sequence: Path) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(sequence)
        check_archive(archive, sequence)
        return archive
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{sequence}: it cannot be opened ({error}). {_REMEDY}") from error


def _frame_names(archive: zipfile.ZipFile) -> list[str]:
    names = (name.removesuffix(".npy") for name in archive.namelist())
    return sorted(
        (name for name in names if _FRAME.fullmatch(name)),
        key=lambda name: int(name.removeprefix("frame_")),
    )


def _array(archive: zipfile.ZipFile, name: str, sequence: Path) -> NDArray[Any]:
    try:
        # In one read: numpy itself would read and verify chunk by chunk.
        stream = io.BytesIO(archive.read(f"{name}.npy"))
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        return array
    # A damaged archive or header makes zipfile and numpy raise almost anything: SyntaxError,
    # zlib.error.
    except Exception as error:
        raise DataError(f"{sequence}: {name} is not readable ({error!r}). {_REMEDY}") from error
