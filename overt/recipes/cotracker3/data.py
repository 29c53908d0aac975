"""Training and evaluation clips of CoTracker3, cut from Kubric sequences.

B clips, T frames, N tracks, H x W pixels; positions are (x, y) with 0 at the centre of the first
pixel, queries are (t, x, y) with t counted from the first frame of the clip.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.data.augment import draw_plan
from overt.data.augment_apply import move_points, render
from overt.data.kubric import Tracks, frame_paths, list_sequences, read_frames, read_tracks
from overt.data.mixture import Mixture
from overt.errors import DataError
from overt.recipes.cotracker3.config import DataSettings, EvaluationSettings, given_root

# Tracks that stray this far from the middle of the crop, in pixels, are left out: such points lie
# on objects that were flung away or behind the camera.
FAR = 1000.0

# Draws before a sample is given up, the first of them from the sequence that was asked for.
TRIES, OWN_TRIES = 12, 4


@dataclass(frozen=True)
class TrackSample:
    """One clip with the tracks to follow."""

    video: Tensor  # (T, 3, H, W) uint8
    tracks: Tensor  # (T, N, 2) float32 pixels
    visibility: Tensor  # (T, N) bool
    valid: Tensor  # (T, N) bool
    queries: Tensor  # (N, 3) float32 (t, x, y)
    name: str


@dataclass(frozen=True)
class TrackBatch:
    """Clips of one length with equally many tracks."""

    video: Tensor  # (B, T, 3, H, W) uint8
    tracks: Tensor  # (B, T, N, 2) float32 pixels
    visibility: Tensor  # (B, T, N) bool
    valid: Tensor  # (B, T, N) bool
    queries: Tensor  # (B, N, 3) float32 (t, x, y)
    names: tuple[str, ...]


def collate(samples: list[TrackSample]) -> TrackBatch:
    """Stack samples; those of different length are refused, never cut to fit their neighbours."""
    lengths = sorted({len(sample.video) for sample in samples})
    if len(lengths) > 1:
        raise DataError(
            f"clips of {', '.join(map(str, lengths))} frames in one micro-batch; they are not cut, "
            "since a sample would then depend on its neighbours. Set training.batch_size=1 and "
            "reach the global batch by accumulation, or data.random_sequence_len=null."
        )
    counts = sorted({sample.tracks.shape[1] for sample in samples})
    if len(counts) > 1:
        raise DataError(
            f"clips with {', '.join(map(str, counts))} tracks in one micro-batch; set the batch "
            "size to 1, or ask for fewer points (evaluation.points_per_sequence)."
        )
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
    """Training samples: random clips of the sequences that are not held out."""

    def __init__(self, settings: DataSettings) -> None:
        sequences = list_sequences(given_root(settings))
        if len(sequences) <= settings.held_out:
            raise DataError(
                f"data.root={settings.root} has {len(sequences)} sequences and data.held_out="
                f"{settings.held_out} of them are kept for evaluation, so none is left to train "
                "on. Lower data.held_out or add sequences."
            )
        self.settings = settings
        self.sequences = sequences[settings.held_out :]

    def __len__(self) -> int:
        return len(self.sequences) * self.settings.repeat

    def sample(self, index: int, rng: np.random.Generator) -> TrackSample:
        """Draw a clip of sequence `index` modulo their number; a function of the arguments alone.

        A clip with too few candidate tracks is drawn again, at last from other sequences.
        """
        wanted = self.settings.traj_per_sample
        sequence = self.sequences[index % len(self.sequences)]
        found = []
        for attempt in range(TRIES):
            if attempt >= OWN_TRIES:
                sequence = self.sequences[rng.integers(len(self.sequences))]
            clip = draw_clip(sequence, self.settings, rng)
            candidates = _candidates(clip, self.settings.sample_vis_last_frame)
            if len(candidates) >= wanted:
                chosen = rng.permutation(candidates)[:wanted]
                visible = clip.visible[chosen]
                frames = _query_frames(visible, self.settings.query_sampling, rng)
                return _to_sample(clip, chosen, frames, sequence.name)
            found.append(len(candidates))
        raise DataError(
            f"data.traj_per_sample={wanted}, but {TRIES} clips drawn for sample {index} had only "
            f"{min(found)} to {max(found)} tracks to choose from (last tried: {sequence}). Lower "
            "data.traj_per_sample, or use sequences with more tracks."
        )


def training_clips(settings: DataSettings) -> KubricClips | Mixture:
    """The training samples that the settings describe: of `root`, or mixed from `sources`."""
    if settings.sources is None:
        return KubricClips(settings)
    clips = []
    for number, source in enumerate(settings.sources):
        # The sequences that are evaluated on are kept out wherever they are listed.
        own = None if settings.root is None else Path(settings.root).resolve()
        shared = Path(source.root).resolve() == own
        held_out = settings.held_out if shared else 0
        part = dataclasses.replace(settings, root=source.root, held_out=held_out, sources=None)
        try:
            clips.append(KubricClips(part))
        except DataError as error:
            raise DataError(f"data.sources[{number}]: {error}") from error
    return Mixture(clips, [source.weight for source in settings.sources])


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
        self.sequences = list_sequences(given_root(data))[: data.held_out]
        self.names = [sequence.name for sequence in self.sequences]

    def __len__(self) -> int:
        return len(self.sequences)

    def sample(self, index: int) -> TrackSample:
        """The centre of the first frames, points spread evenly, queried where first seen."""
        sequence = self.sequences[index]
        tracks = read_tracks(sequence)
        length = tracks.coords_xy.shape[1]
        if length < self.settings.frames:
            raise DataError(
                f"{sequence} has {length} frames, evaluation.frames asks for "
                f"{self.settings.frames}. Lower evaluation.frames."
            )
        clip = read_clip(sequence, tracks, np.arange(self.settings.frames))
        top, left = _margins(clip, self.crop_size, sequence)
        clip = crop(clip, top // 2, left // 2, self.crop_size)
        seen = np.flatnonzero(clip.visible.any(axis=1))
        if len(seen) == 0:
            raise DataError(
                f"{sequence}: no track is visible in the first {self.settings.frames} frames. "
                "Raise evaluation.frames or data.crop_size, or take its folder out of the data set."
            )
        count = min(self.settings.points_per_sequence, len(seen))
        chosen = seen[np.linspace(0, len(seen) - 1, count).round().astype(np.intp)]
        return _to_sample(clip, chosen, clip.visible[chosen].argmax(axis=1), sequence.name)


def draw_clip(sequence: Path, settings: DataSettings, rng: np.random.Generator) -> Clip:
    """A random run of frames of a sequence, at the size and with the tracks to train on."""
    tracks = read_tracks(sequence)
    indices = frame_indices(tracks.coords_xy.shape[1], settings, rng, sequence)
    clip = read_clip(sequence, tracks, indices)
    if settings.augment:
        clip = augmented(clip, settings, rng)
    else:
        clip = random_crop(clip, settings.crop_size, rng, sequence)
    return _drop_far(clip)


def frame_indices(
    length: int, settings: DataSettings, rng: np.random.Generator, sequence: Path
) -> NDArray[np.intp]:
    """How long the clip is, how fast it plays and where it starts."""
    clip_length = settings.sequence_len
    if settings.random_sequence_len is not None:
        clip_length = int(rng.integers(settings.random_sequence_len, settings.sequence_len))
    if clip_length > length:
        raise DataError(
            f"{sequence} has {length} frames, a clip of {clip_length} was drawn. Lower "
            f"data.sequence_len={settings.sequence_len}, or use longer sequences."
        )
    rate = int(rng.integers(1, length // clip_length + 1)) if settings.random_frame_rate else 1
    latest = length - clip_length * rate
    start = int(rng.integers(latest)) if latest > 0 else 0
    return start + rate * np.arange(clip_length)


def read_clip(sequence: Path, tracks: Tracks, indices: NDArray[np.intp]) -> Clip:
    """Decode these frames of a sequence and cut its tracks to them."""
    frames = read_frames(frame_paths(sequence), indices)
    return Clip(frames, tracks.coords_xy[:, indices], tracks.visible[:, indices])


def augmented(clip: Clip, settings: DataSettings, rng: np.random.Generator) -> Clip:
    """The clip with other colours, zoomed, cut to size and mirrored as the draws have it."""
    height, width = clip.frames.shape[2:]
    crop_height, crop_width = settings.crop_size
    plan = draw_plan(
        len(clip.frames), (height, width), (crop_height, crop_width), settings.augmentation, rng
    )
    coords, visible, corners = move_points(plan, clip.coords_xy, clip.visible)
    frames = render(plan, corners, torch.from_numpy(clip.frames)).numpy()
    return Clip(frames, coords, visible & _inside(coords, settings.crop_size))


def random_crop(clip: Clip, size: list[int], rng: np.random.Generator, sequence: Path) -> Clip:
    """Cut to (height, width): rows from the middle, columns anywhere."""
    spare_rows, spare_columns = _margins(clip, size, sequence)
    left = int(rng.integers(spare_columns)) if spare_columns > 0 else 0
    return crop(clip, spare_rows // 2, left, size)


def crop(clip: Clip, top: int, left: int, size: list[int]) -> Clip:
    """Cut a window from every frame; a point outside it is not visible."""
    height, width = size
    coords = clip.coords_xy - np.array([left, top], dtype=np.float32)
    frames = clip.frames[:, :, top : top + height, left : left + width]
    return Clip(frames, coords, clip.visible & _inside(coords, size))


def _inside(coords_xy: NDArray[np.float32], size: list[int]) -> NDArray[np.bool_]:
    """Which points (..., 2) lie within the centres of the outermost pixels of (height, width)."""
    x, y = coords_xy[..., 0], coords_xy[..., 1]
    return (x >= 0) & (x <= size[1] - 1) & (y >= 0) & (y <= size[0] - 1)


def _margins(clip: Clip, size: list[int], sequence: Path) -> tuple[int, int]:
    """Rows and columns of the frames beyond the crop."""
    height, width = clip.frames.shape[2:]
    if height < size[0] or width < size[1]:
        raise DataError(
            f"{sequence} has frames of {height}x{width} (height x width), less than "
            f"data.crop_size={list(size)}. Lower data.crop_size."
        )
    return height - size[0], width - size[1]


def _drop_far(clip: Clip) -> Clip:
    height, width = clip.frames.shape[2:]
    offset = clip.coords_xy - np.array([width / 2, height / 2], dtype=np.float32)
    near = (np.hypot(offset[..., 0], offset[..., 1]) < FAR).all(axis=1)  # (N,)
    return Clip(clip.frames, clip.coords_xy[near], clip.visible[near])


def _candidates(clip: Clip, with_last_frame: bool) -> NDArray[np.intp]:
    """Tracks visible in the first, the middle and perhaps the last frame.

    A track in several of these lists is named several times and may be drawn more than once.
    """
    length = clip.visible.shape[1]
    moments = [0, length // 2, length - 1] if with_last_frame else [0, length // 2]
    return np.concatenate([np.flatnonzero(clip.visible[:, moment]) for moment in moments])


def _query_frames(
    visible: NDArray[np.bool_], sampling: str, rng: np.random.Generator
) -> NDArray[np.intp]:
    """The frame (N,) in which each track is given: one in which it is visible (N, T)."""
    lots = np.where(visible, rng.random(visible.shape), -1.0)
    anywhere: NDArray[np.intp] = lots.argmax(axis=1)
    if sampling == "random":
        return anywhere
    frames: NDArray[np.intp] = visible.argmax(axis=1)  # the first visible one
    quarter = len(visible) // 4
    frames[:quarter] = anywhere[:quarter]
    return frames


def _to_sample(
    clip: Clip, chosen: NDArray[np.intp], query_frames: NDArray[np.intp], name: str
) -> TrackSample:
    tracks = clip.coords_xy[chosen].transpose(1, 0, 2)  # (T, N, 2)
    visible = clip.visible[chosen].T  # (T, N)
    places = clip.coords_xy[chosen, query_frames]  # (N, 2)
    queries = np.concatenate([query_frames[:, None], places], axis=1, dtype=np.float32)
    return TrackSample(
        video=torch.from_numpy(np.ascontiguousarray(clip.frames)),
        tracks=torch.from_numpy(np.ascontiguousarray(tracks)),
        visibility=torch.from_numpy(np.ascontiguousarray(visible)),
        # The reader refuses NaN and a query is visible, hence in the frame: nothing to mask.
        valid=torch.ones(visible.shape, dtype=torch.bool),
        queries=torch.from_numpy(queries),
        name=name,
    )
