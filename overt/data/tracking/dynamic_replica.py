"""Dynamic Replica as published: synthetic rooms with moving people, exact tracks.

ROOT/SPLIT/frame_annotations_SPLIT.jgz lists the frames; each has a picture and a file of tensors
with its points. T frames, N points; (x, y) in pixels, 0 at the center of the first pixel.
"""

from __future__ import annotations

import gzip
import json
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.data.images.decode import decode_image
from overt.data.rng import sample_rng
from overt.errors import DataError
from overt.files.weight_files import read_torch_file

CAMERA = "left"
FEWEST_VISIBLE = 10  # frames: tracks visible in no more than these are dropped
LARGEST_LIST = 2**31  # bytes of an unpacked annotation file

_ADVICE = "Get the file again from its publisher."


class AnnotatedClip(NamedTuple):
    """Frames with tracks."""

    frames: NDArray[np.uint8]  # (T, 3, H, W)
    coords_xy: NDArray[np.float32]  # (N, T, 2)
    visible: NDArray[np.bool_]  # (N, T)
    valid: NDArray[np.bool_] | None = None  # (N, T): does the position mean anything? None: all do


class _Frame(NamedTuple):
    number: int
    image: Path
    points: Path


class DynamicReplica:
    """Clips of the left camera, in the order of sequences."""

    def __init__(
        self, root: Path | str, split: str = "valid", frames: int = 300, points: int = 256
    ) -> None:
        self.folder, self.points = Path(root) / split, points
        self.file = self.folder / f"frame_annotations_{split}.jgz"
        sequences = _read_sequences(self.file, self.folder)
        self.clips: list[tuple[str, list[_Frame]]] = []
        for name, listed in sequences.items():
            length = min(frames, len(listed))
            for first in range(0, len(listed) - length + 1, length):
                self.clips.append((f"{name}-{first}", listed[first : first + length]))

    def __len__(self) -> int:
        return len(self.clips)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.clips]

    def where(self, index: int) -> str:
        """File and clip, for messages."""
        return f"{self.file}, clip {self.clips[index][0]}"

    def clip(self, index: int) -> AnnotatedClip:
        """Read a clip with tracks that are visible in its first frame: a fixed random selection."""
        source, listed = self.where(index), self.clips[index][1]
        frames, coords, visible = [], [], []
        for frame in listed:
            frames.append(decode_image(_bytes(frame.image), str(frame.image)))
            points_xy, frame_visible = _read_points(frame.points)
            coords.append(points_xy)
            visible.append(frame_visible)
        counts, sizes = (
            {len(frame_coords) for frame_coords in coords},
            {frame.shape for frame in frames},
        )
        if len(counts) > 1 or len(sizes) > 1:
            raise DataError(
                f"{source}: its frames have {sorted(counts)} points and shapes {sorted(sizes)}; "
                f"expected one number and one shape. {_ADVICE}"
            )
        height, width = frames[0].shape[:2]
        tracks, shown = np.stack(coords, 1), np.stack(visible, 1)  # (N, T, 2), (N, T)
        inside = (tracks >= 0).all(-1) & (tracks <= [width - 1, height - 1]).all(-1)
        shown &= inside
        usable = np.flatnonzero((shown.sum(1) > min(FEWEST_VISIBLE, len(listed) - 1)) & shown[:, 0])
        if not len(usable):
            raise DataError(f"{source}: no track is visible in its first frame and long enough")
        chosen = np.sort(sample_rng(0, 0, index).permutation(usable)[: self.points])
        pixels = np.stack([frame.transpose(2, 0, 1) for frame in frames])
        return AnnotatedClip(pixels, tracks[chosen], shown[chosen])


def _read_sequences(file: Path, folder: Path) -> dict[str, list[_Frame]]:
    """Return the frames of the left camera of each sequence, in temporal order."""
    entries = _read_list(file)
    sequences: dict[str, list[_Frame]] = {}
    try:
        for entry in entries:
            if entry["camera_name"] == CAMERA:
                frame = _Frame(
                    int(entry["frame_number"]),
                    _below(folder, entry["image"]["path"]),
                    _below(folder, entry["trajectories"]["path"]),
                )
                sequences.setdefault(str(entry["sequence_name"]), []).append(frame)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{file}: an entry without the fields of Dynamic Replica ({error!r}). {_ADVICE}"
        ) from None
    if not sequences:
        raise DataError(f"{file}: no frames of the camera {CAMERA}. {_ADVICE}")
    ordered = {name: sorted(frames) for name, frames in sorted(sequences.items())}
    for name, frames in ordered.items():
        repeated = next((a.number for a, b in pairwise(frames) if a.number == b.number), None)
        if repeated is not None:
            raise DataError(
                f"{file}: frame {repeated} of sequence {name} is listed twice for the camera "
                f"{CAMERA}. {_ADVICE}"
            )
    return ordered


def _read_list(file: Path) -> list[Any]:
    if not file.is_file():
        raise DataError(
            f"{file}: no such file. Point dataset_root to the folder that holds the split of "
            "Dynamic Replica, as its publisher unpacks it"
        )
    try:
        with gzip.open(file, "rb") as stream:
            content = json.loads(stream.read(LARGEST_LIST))
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise DataError(f"{file}: not a gzip file of JSON ({error}). {_ADVICE}") from None
    if not isinstance(content, list):
        raise DataError(f"{file}: expected a list of frames. {_ADVICE}")
    return content


def _below(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{folder}: the annotations name {name}, outside of the folder. {_ADVICE}")
    return path


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error}). {_ADVICE}") from None


def _read_points(path: Path) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return positions (N, 2) and visibility (N,) of one frame."""
    if not path.is_file():
        raise DataError(f"{path}: no such file. {_ADVICE}")
    content = read_torch_file(path)
    entries = content if isinstance(content, dict) else {}
    points, visible = entries.get("traj_2d"), entries.get("verts_inds_vis")
    if (
        not _is_plain(points)
        or not _is_plain(visible)
        or points.ndim != 2
        or points.shape[1] < 2
        or visible.shape != points.shape[:1]
    ):
        raise DataError(
            f"{path}: expected traj_2d (N, 3) and verts_inds_vis (N), both dense tensors of real "
            f"numbers. {_ADVICE}"
        )
    points, visible = points.detach(), visible.detach()
    positions = points[:, :2].float().numpy()
    finite = np.isfinite(positions).all(-1)
    return np.where(finite[:, None], positions, 0.0), visible.bool().numpy() & finite


def _is_plain(value: object) -> TypeGuard[Tensor]:
    """Return whether a value is a tensor of real numbers that NumPy can hold."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return False
    return value.device.type == "cpu" and not (value.is_complex() or value.is_quantized)
