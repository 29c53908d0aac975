"""Kubric sequences on disk: SEQ/frames/000.png ... and SEQ/SEQ.npy with the tracks of its points.

Read by CoTracker3 (MOVi-F, 120 frames) and LBM (24 frames); also written by `overt data kubric
ROOT`. N tracks, T frames, (x, y) in pixels, 0 at the center of the first pixel.
"""

from __future__ import annotations

import shlex
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overt.data.pictures import to_rgb
from overt.data.tracking.video import natural_order
from overt.errors import DataError
from overt.files.pickles import load_npy_object

_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
_REMEDY = "Get the sequence again, or remove its folder from the data set."


class Tracks(NamedTuple):
    """Positions and visibility of the points of a sequence."""

    coords_xy: NDArray[np.float32]  # (N, T, 2) pixels
    visible: NDArray[np.bool_]  # (N, T)


def list_sequences(root: Path | str) -> list[Path]:
    """Return the sequence folders under `root`, sorted by name."""
    root = Path(root)
    remedy = (
        "Kubric MOVi-F with tracks is on Hugging Face as facebook/CoTracker3_Kubric; "
        f"`overt data kubric {shlex.quote(str(root))}` makes synthetic sequences in the same "
        "format."
    )
    if not root.is_dir():
        raise DataError(f"data.root={root}: no such folder. {remedy}")
    sequences = sorted(
        entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    if not sequences:
        archives = len(list(root.glob("*.tar*")))
        content_text = f"{archives} archives to unpack first" if archives else "no sequence folders"
        raise DataError(f"data.root={root}: found {content_text}. {remedy}")
    first = sequences[0]
    if not (first / "frames").is_dir():
        raise DataError(
            f"data.root={root}: the folder {first.name} in it has no folder `frames`, so it is not "
            f"a sequence. Point data.root to the folder whose subfolders are sequences. {remedy}"
        )
    return sequences


def frame_paths(sequence: Path) -> list[Path]:
    """Return the image files of a sequence in temporal order."""
    folder = sequence / "frames"
    if not folder.is_dir():
        raise DataError(f"{sequence}: it has no folder `frames`. {_REMEDY}")
    # macOS writes a hidden ._NAME beside each file of a disk that is not its own.
    paths = [
        path
        for path in folder.iterdir()
        if path.suffix.lower() in _IMAGE_SUFFIXES and path.name[0] != "."
    ]
    if not paths:
        raise DataError(f"{folder}: it has no images. {_REMEDY}")
    return sorted(paths, key=natural_order)  # also names without leading zeros


def read_tracks(sequence: Path) -> Tracks:
    """Read the tracks of a sequence and check them against its frames."""
    path = sequence / f"{sequence.name}.npy"
    content = load_npy_object(path)
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__}, expected a dict. {_REMEDY}")
    missing = [key for key in ("coords", "visibility") if key not in content]
    if missing:
        listed = ", ".join(str(key) for key in content) or "nothing"
        raise DataError(f"{path}: has no {' and no '.join(missing)}; found {listed}. {_REMEDY}")
    coords = read_coords(path, content["coords"])
    # The key is called visibility, but the value is its opposite: TAP-Vid's `occluded`.
    occluded = read_occluded(path, "visibility", content["visibility"], coords.shape[:2])
    frames = len(frame_paths(sequence))
    if frames != coords.shape[1]:
        raise DataError(
            f"{sequence}: {frames} images in frames/, but tracks of {coords.shape[1]} frames in "
            f"{path.name}. {_REMEDY}"
        )
    return Tracks(coords, ~occluded)


def read_coords(path: Path, value: Any, remedy: str = _REMEDY) -> NDArray[np.float32]:
    """Return positions (N, T, 2) as they should be; reject anything else that `path` holds."""
    coords = np.asarray(value)
    if coords.ndim != 3 or coords.shape[2] != 2 or coords.dtype.kind not in "fiu":
        raise DataError(
            f"{path}: coords has shape {coords.shape} and type {coords.dtype}, expected numbers of "
            f"shape (tracks, frames, 2). {remedy}"
        )
    with np.errstate(over="ignore"):  # becomes Inf, and is refused as such
        coords = coords.astype(np.float32, copy=False)
    broken = ~np.isfinite(coords)
    if broken.any():
        track, frame, _ = np.argwhere(broken)[0]
        raise DataError(
            f"{path}: coords has {int(broken.sum())} values that are NaN or Inf in "
            f"{int(broken.any(axis=(1, 2)).sum())} of {len(coords)} tracks, the first in track "
            f"{track} at frame {frame}. {remedy}"
        )
    return coords


def read_occluded(
    path: Path, key: str, value: Any, shape: tuple[int, ...], remedy: str = _REMEDY
) -> NDArray[np.bool_]:
    """Return where points are occluded, (N, T); reject anything else that `path` holds."""
    occluded = np.asarray(value)
    if occluded.shape != shape:
        raise DataError(
            f"{path}: {key} has shape {occluded.shape}, expected {shape} like coords. {remedy}"
        )
    if occluded.dtype == np.bool_:
        return occluded
    if occluded.dtype.kind not in "iuf" or not np.isin(occluded, (0, 1)).all():
        raise DataError(
            f"{path}: {key} has type {occluded.dtype} and values other than 0 and 1, expected "
            f"True or 1 where a point is occluded. {remedy}"
        )
    return occluded.astype(np.bool_)


def read_frames(paths: Sequence[Path], indices: Iterable[int]) -> NDArray[np.uint8]:
    """Decode only the requested frames to RGB (T, 3, H, W)."""
    frames = [_read_image(paths[index]) for index in indices]
    sizes = sorted({frame.shape[1::-1] for frame in frames})
    if len(sizes) > 1:
        listed = ", ".join(f"{width}x{height}" for width, height in sizes)
        raise DataError(f"{paths[0].parent}: images of different sizes, {listed}. {_REMEDY}")
    return np.stack([frame.transpose(2, 0, 1) for frame in frames])


def _read_image(path: Path) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as image:
            return to_rgb(image)  # (H, W, 3)
    # Pillow raises SyntaxError, ValueError or struct.error for a broken header, OSError otherwise.
    except (
        OSError,
        SyntaxError,
        ValueError,
        struct.error,
        Image.DecompressionBombError,
    ) as error:
        raise DataError(f"{path}: not a readable image ({error}). {_REMEDY}") from error
