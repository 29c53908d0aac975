"""PointOdyssey as published: long synthetic videos with tracks.

ROOT/SPLIT/SEQUENCE/rgbs/rgb_00000.jpg, ... and annot.npz with `trajs_2d` (T, N, 2) and `visibs` (T,
N): 1 visible, 0 occluded, 2 and above invalid. This file does not import torch.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overt.data.images.decode import decode_image
from overt.data.tracking.dynamic_replica import AnnotatedClip
from overt.errors import DataError
from overt.files.bounds import open_arrays

FEWEST_VISIBLE = 8  # frames
FARTHEST_STEP = 512.0  # pixels between two frames: what moves more has been put elsewhere
BORDER = 1.0  # pixels: points this near to the edge of the image are hidden, and not scored
OUTSIDE = 32.0  # pixels beyond the image to which positions are clamped

_ADVICE = "Get the sequence again from its publisher."


class PointOdyssey:
    """The start of every sequence of a split; only requested frames are decoded."""

    def __init__(
        self, root: Path | str, split: str = "test", frames: int = 300, points: int = 256
    ) -> None:
        self.folder, self.frames, self.points = Path(root) / split, frames, points
        files = sorted(self.folder.glob("*/annot.npz"))
        if not files:
            raise DataError(
                f"{self.folder}: no SEQUENCE/annot.npz in it. Point dataset_root to the folder "
                f"that holds the folder {split} of PointOdyssey, as its publisher unpacks it"
            )
        self.sequences = [file.parent for file in files]
        self.names = [sequence.name for sequence in self.sequences]

    def __len__(self) -> int:
        return len(self.sequences)

    def where(self, index: int) -> str:
        """The sequence, for messages."""
        return str(self.sequences[index])

    def clip(self, index: int) -> AnnotatedClip:
        """Read the first frames of a sequence with tracks that are evenly spaced in its list."""
        sequence = self.sequences[index]
        coords, states = _read_annotations(sequence / "annot.npz", self.frames)
        paths = [sequence / "rgbs" / f"rgb_{number:05d}.jpg" for number in range(coords.shape[1])]
        missing = next((path for path in paths if not path.is_file()), None)
        if missing is not None:
            raise DataError(f"{missing}: no such file. {_ADVICE}")
        pictures = [decode_image(path.read_bytes(), str(path)) for path in paths]
        if len({picture.shape for picture in pictures}) > 1:
            raise DataError(f"{sequence}: frames of different sizes. {_ADVICE}")
        height, width = pictures[0].shape[:2]
        coords, visible, valid = usable(coords, states, (height, width))
        track_indices = keep_tracks(coords, visible, valid)
        if not len(track_indices):
            raise DataError(f"{sequence}: no track is visible in its first frame and long enough")
        count = min(self.points, len(track_indices))
        chosen = track_indices[
            np.linspace(0, len(track_indices) - 1, count).round().astype(np.intp)
        ]
        limit = np.array([width - 1, height - 1], np.float32) + OUTSIDE
        coords = np.clip(coords[chosen], -OUTSIDE, limit).astype(np.float32)
        frames = np.stack([picture.transpose(2, 0, 1) for picture in pictures])
        return AnnotatedClip(frames, coords, visible[chosen], valid[chosen])


def usable(
    coords: NDArray[np.float32], states: NDArray[np.int64], size: tuple[int, int]
) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return finite positions (N, T, 2), where points are visible, and where they are valid."""
    height, width = size
    finite = np.asarray(np.isfinite(coords).all(axis=-1))
    coords = np.where(np.expand_dims(finite, -1), coords, 0.0).astype(np.float32)
    x, y = coords[..., 0], coords[..., 1]
    inner = (x >= BORDER) & (x <= width - 1 - BORDER) & (y >= BORDER) & (y <= height - 1 - BORDER)
    valid: NDArray[np.bool_] = finite & (states < 2) & inner
    visible: NDArray[np.bool_] = valid & (states == 1)
    return coords, visible, valid


def keep_tracks(
    coords: NDArray[np.float32], visible: NDArray[np.bool_], valid: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """Return the tracks to score: visible at first and often enough, without jumps."""
    steps = np.linalg.norm(np.diff(coords, axis=1), axis=-1)  # (N, T - 1)
    jumps = (steps >= FARTHEST_STEP) & valid[:, 1:] & valid[:, :-1]
    visible_enough = (visible & valid).sum(1) >= min(FEWEST_VISIBLE, visible.shape[1])
    usable: NDArray[np.intp] = np.flatnonzero(visible[:, 0] & visible_enough & ~jumps.any(1))
    return usable


def _read_annotations(file: Path, frames: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return positions (N, T, 2) and states (N, T) of the first frames."""
    try:
        with open_arrays(file) as archive:
            coords, states = archive["trajs_2d"][:frames], archive["visibs"][:frames]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        reason = f"its trajs_2d and visibs cannot be read ({error})"
        raise DataError(f"{file}: {reason}. {_ADVICE}") from None
    is_shaped = coords.ndim == 3 and coords.shape[2] == 2 and states.shape == coords.shape[:2]
    if not is_shaped or not len(coords):
        raise DataError(
            f"{file}: trajs_2d of shape {coords.shape} and visibs of shape {states.shape}; "
            f"expected (T, N, 2) and (T, N), at least one frame. {_ADVICE}"
        )
    if coords.dtype.kind not in "fiu" or states.dtype.kind not in "fiub":
        raise DataError(
            f"{file}: expected numbers, got {coords.dtype} and {states.dtype}. {_ADVICE}"
        )
    with np.errstate(invalid="ignore"):
        states_filled = np.nan_to_num(states.astype(np.float64), nan=2.0, posinf=2.0, neginf=2.0)
    return coords.astype(np.float32).transpose(1, 0, 2), states_filled.astype(np.int64).T
