"""Training and evaluation clips of LBM, cut from Kubric sequences.

B clips, T frames, N tracks, H x W pixels; positions are (x, y) in pixels, queries (t, x, y) with t
counted from the first frame of the clip.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.data.augment import draw_plan
from overt.data.augment_apply import move_points, render
from overt.data.packed_sequences import find_sequences, read_frames, read_tracks
from overt.errors import DataError
from overt.recipes.lbm.config import DataSettings, EvaluationSettings, given_root

# Draws before a sample is given up, the first of them from the sequence that was asked for.
TRIES, OWN_TRIES = 12, 4


@dataclass(frozen=True)
class TrackSample:
    """One clip with the tracks to follow."""

    video: Tensor  # (T, 3, H, W) uint8
    tracks: Tensor  # (T, N, 2) float32 pixels
    visibility: Tensor  # (T, N) bool
    valid: Tensor  # (N,) bool: a track, not the filling of a clip with too few
    queries: Tensor  # (N, 3) float32 (t, x, y)
    name: str


@dataclass(frozen=True)
class TrackBatch:
    """Clips of one length with equally many tracks."""

    video: Tensor  # (B, T, 3, H, W) uint8
    tracks: Tensor  # (B, T, N, 2) float32 pixels
    visibility: Tensor  # (B, T, N) bool
    valid: Tensor  # (B, N) bool
    queries: Tensor  # (B, N, 3) float32 (t, x, y)
    names: tuple[str, ...]


def collate(samples: list[TrackSample]) -> TrackBatch:
    """Stack samples; they are alike in shape whatever their sequences have."""
    return TrackBatch(
        video=torch.stack([sample.video for sample in samples]),
        tracks=torch.stack([sample.tracks for sample in samples]),
        visibility=torch.stack([sample.visibility for sample in samples]),
        valid=torch.stack([sample.valid for sample in samples]),
        queries=torch.stack([sample.queries for sample in samples]),
        names=tuple(sample.name for sample in samples),
    )


class Clip(NamedTuple):
    """Some frames of a sequence with all its tracks, before tracks are chosen."""

    frames: NDArray[np.uint8]  # (T, 3, H, W)
    coords_xy: NDArray[np.float32]  # (N, T, 2)
    visible: NDArray[np.bool_]  # (N, T)


class KubricClips:
    """Training samples: clips of the sequences that are not held out."""

    def __init__(self, settings: DataSettings) -> None:
        sequences = find_sequences(given_root(settings))
        if len(sequences) <= settings.held_out:
            raise DataError(
                f"data.root={settings.root} has {len(sequences)} sequences and data.held_out="
                f"{settings.held_out} of them are kept for evaluation, so none is left to train "
                "on. Lower data.held_out or add sequences."
            )
        self.settings = settings
        self.sequences = sequences[settings.held_out :]

    def __len__(self) -> int:
        return len(self.sequences)

    def sample(self, index: int, rng: np.random.Generator) -> TrackSample:
        """Draw a clip of sequence `index`; a function of the arguments alone.

        A clip without a track that is visible in its first frame is drawn again, at last from
        other sequences.
        """
        sequence = self.sequences[index]
        for attempt in range(TRIES):
            if attempt >= OWN_TRIES:
                sequence = self.sequences[rng.integers(len(self.sequences))]
            clip = draw_clip(sequence, self.settings, rng)
            seen = np.flatnonzero(clip.visible[:, 0])
            if len(seen):
                chosen = rng.permutation(seen)[: self.settings.points]
                frames = draw_query_frames(clip.visible[chosen], rng)
                return to_sample(clip, chosen, frames, self.settings.points, sequence.stem)
        raise DataError(
            f"none of {TRIES} clips drawn for sample {index} has a track that is visible in its "
            f"first frame (last tried: {sequence}). Raise data.crop_size, use weaker augmentations "
            "or sequences with more tracks."
        )


class HeldOutClips:
    """Evaluation samples: the start of every held-out sequence, always the same."""

    def __init__(self, data: DataSettings, evaluation: EvaluationSettings) -> None:
        if data.held_out < 1:
            raise DataError(
                "data.held_out=0 leaves no sequence to evaluate on; set it to the number of "
                "sequences to keep out of training."
            )
        self.crop_size = data.crop_size
        self.settings = evaluation
        self.query_mode = "first"
        self.sequences = find_sequences(given_root(data))[: data.held_out]
        self.names = [sequence.stem for sequence in self.sequences]

    def __len__(self) -> int:
        return len(self.sequences)

    def sample(self, index: int) -> TrackSample:
        """The centre of the first frames, points spread evenly, queried where first seen."""
        sequence = self.sequences[index]
        clip = read_clip(sequence, 0, self.settings.frames, "evaluation.frames")
        clip = centre_crop(clip, self.crop_size, sequence)
        seen = np.flatnonzero(clip.visible.any(axis=1))
        if len(seen) == 0:
            raise DataError(
                f"{sequence}: no track is visible in the first {self.settings.frames} frames. "
                "Raise evaluation.frames or data.crop_size, or take it out of the data set."
            )
        count = min(self.settings.points_per_sequence, len(seen))
        chosen = seen[np.linspace(0, len(seen) - 1, count).round().astype(np.intp)]
        frames = clip.visible[chosen].argmax(axis=1)
        return to_sample(clip, chosen, frames, count, sequence.stem)


def draw_clip(sequence: Path, settings: DataSettings, rng: np.random.Generator) -> Clip:
    """A random run of frames of a sequence, at the size and with the tracks to train on."""
    clip = read_clip(sequence, None, settings.frames, "data.frames", rng)
    if not settings.augment:
        return centre_crop(clip, settings.crop_size, sequence)
    height, width = clip.frames.shape[2:]
    crop_height, crop_width = settings.crop_size
    plan = draw_plan(
        len(clip.frames), (height, width), (crop_height, crop_width), settings.augmentation, rng
    )
    coords, visible, corners = move_points(plan, clip.coords_xy, clip.visible)
    frames = render(plan, corners, torch.from_numpy(clip.frames)).numpy()
    return Clip(frames, coords, visible & inside(coords, settings.crop_size))


def read_clip(
    sequence: Path,
    start: int | None,  # its first frame; None: drawn
    frames: int,
    key: str,  # of the configuration that asks for so many frames
    rng: np.random.Generator | None = None,
) -> Clip:
    """Some frames of a sequence, and its tracks cut to them."""
    tracks = read_tracks(sequence)
    length = tracks.coords_xy.shape[1]
    if length < frames:
        raise DataError(
            f"{sequence} has {length} frames, {key}={frames} asks for more. Lower {key}, or take "
            "the sequence out of the data set."
        )
    if start is None:
        assert rng is not None, "a start is drawn from a generator"
        start = int(rng.integers(length - frames + 1)) if length > frames else 0
    span = slice(start, start + frames)
    pixels = read_frames(sequence, range(start, start + frames))
    return Clip(pixels, tracks.coords_xy[:, span], tracks.visible[:, span])


def centre_crop(clip: Clip, size: list[int], sequence: Path) -> Clip:
    """The middle (height, width) of every frame; a point outside it is not visible."""
    height, width = clip.frames.shape[2:]
    if height < size[0] or width < size[1]:
        raise DataError(
            f"{sequence} has frames of {height}x{width} (height x width), less than "
            f"data.crop_size={list(size)}. Lower data.crop_size."
        )
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    coords = clip.coords_xy - np.array([left, top], dtype=np.float32)
    frames = clip.frames[:, :, top : top + size[0], left : left + size[1]]
    return Clip(frames, coords, clip.visible & inside(coords, size))


def inside(coords_xy: NDArray[np.float32], size: list[int]) -> NDArray[np.bool_]:
    """Which points (..., 2) lie in an image of (height, width), its right and lower edge included.

    The edge itself belongs to no cell; the loss takes such a point for one outside, as published.
    """
    x, y = coords_xy[..., 0], coords_xy[..., 1]
    return (x >= 0) & (x <= size[1]) & (y >= 0) & (y <= size[0])


def draw_query_frames(visible: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.intp]:
    """The frame (N,) in which each track is given: the first that shows it, for one track in four
    any that does; `visible` is (N, T)."""
    frames: NDArray[np.intp] = visible.argmax(axis=1)
    quarter = len(visible) // 4
    lots = np.where(visible[:quarter], rng.random(visible[:quarter].shape), -1.0)
    frames[:quarter] = lots.argmax(axis=1) if quarter else 0
    return frames


def to_sample(
    clip: Clip,
    chosen: NDArray[np.intp],
    query_frames: NDArray[np.intp],
    points: int,
    name: str,
) -> TrackSample:
    """The chosen tracks, filled up to `points` with ones that count for nothing."""
    length, count = clip.visible.shape[1], len(chosen)
    tracks = np.zeros((length, points, 2), np.float32)
    tracks[:, :count] = clip.coords_xy[chosen].transpose(1, 0, 2)
    visible = np.zeros((length, points), np.bool_)
    visible[:, :count] = clip.visible[chosen].T
    queries = np.zeros((points, 3), np.float32)
    queries[:count, 0] = query_frames
    queries[:count, 1:] = clip.coords_xy[chosen, query_frames]
    return TrackSample(
        video=torch.from_numpy(np.ascontiguousarray(clip.frames)),
        tracks=torch.from_numpy(tracks),
        visibility=torch.from_numpy(visible),
        valid=torch.arange(points) < count,
        queries=torch.from_numpy(queries),
        name=name,
    )
