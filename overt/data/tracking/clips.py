"""Clips of Kubric sequences with their tracks, shared by all point trackers.

B clips, T frames, N tracks, H x W pixels; positions are (x, y) in pixels, queries (t, x, y) with t
counted from the first frame of the clip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.data.tracking.augment import Plan, draw_plan
from overt.data.tracking.augment_apply import move_points, render
from overt.data.tracking.kubric import Tracks
from overt.data.tracking.packed import SUFFIX, find_sequences, read_frames
from overt.data.tracking.settings import KubricSettings
from overt.data.tracking.synthetic_kubric import write_sequences
from overt.distributed import main_first
from overt.errors import DataError
from overt.progress import expendable

# Attempts before a sample is given up, the first of them with the requested sequence.
TRIES, OWN_TRIES = 12, 4

# Pixels by which a query may be outside of the image: some files place the last pixel's edge, not
# its center, at the size. Queries farther away are rejected if given by a user, and clamped if they
# come from a data set.
QUERY_MARGIN = 1.0


def as_points(given: Any) -> Tensor:
    """Return points of a frame as (N, 2) float32; reject any other shape."""
    points_xy = torch.as_tensor(given, dtype=torch.float32)
    if points_xy.ndim != 2 or points_xy.shape[1] != 2:
        raise DataError(f"points of shape {tuple(points_xy.shape)}; expected (points, 2)")
    return points_xy


def refuse_points_outside(points_xy: Tensor, frame_size: tuple[int, int]) -> None:
    """Reject points (N, 2) outside of a frame of (height, width)."""
    height, width = frame_size
    last = torch.tensor([width - 1, height - 1]).to(points_xy)
    inside = ((points_xy >= -QUERY_MARGIN) & (points_xy <= last + QUERY_MARGIN)).all(-1)
    if not inside.all():
        number = int((~inside).nonzero()[0])
        x, y = points_xy[number].tolist()
        raise DataError(
            f"point {number} at ({x:g}, {y:g}) lies outside the frame of {width} x {height} "
            "pixels; drop it"
        )


class Positions(IntEnum):
    """The pixel convention of a recipe; the last position in W pixels is W minus the value."""

    SHARES = 0  # a fraction of the image times its size: 0 and W are its edges
    CENTRES = 1  # 0 and W - 1 are the centers of the outermost pixels


class Rendering(NamedTuple):
    """Planned color changes, zoom and crop of frames, not yet applied."""

    plan: Plan
    corners: NDArray[np.int64]  # (T, 2) of the crops


@dataclass(frozen=True)
class TrackSample:
    """One clip with the tracks to predict."""

    video: Tensor  # (T, 3, H, W) uint8
    tracks: Tensor  # (T, N, 2) float32 pixels
    visibility: Tensor  # (T, N) bool
    valid: Tensor  # (N,) bool: a track, not the filling of a clip with too few
    queries: Tensor  # (N, 3) float32 (t, x, y)
    name: str
    redrawn: int = 0  # clips that were rejected before this one
    rendering: Rendering | None = None  # of a video that is still to be cut to its size
    scored: Tensor | None = None  # (T, N) bool: where labels are valid; None: everywhere


@dataclass(frozen=True)
class TrackBatch:
    """Clips with equal numbers of frames and tracks."""

    video: Tensor  # (B, T, 3, H, W) uint8
    tracks: Tensor  # (B, T, N, 2) float32 pixels
    visibility: Tensor  # (B, T, N) bool
    valid: Tensor  # (B, N) bool, or (B, T, N) where a recipe tells frames apart
    queries: Tensor  # (B, N, 3) float32 (t, x, y)
    redrawn: Tensor  # (B,) float32: clips that were rejected before each of these
    names: tuple[str, ...]
    renderings: tuple[Rendering, ...] | None = None  # of each video, where it is still to be done


def stack_samples(samples: Sequence[TrackSample]) -> TrackBatch:
    """Stack samples of equal shapes; frames may differ in size until they are rendered."""
    if len({sample.video.shape for sample in samples}) > 1:
        samples = [_rendered_sample(sample) for sample in samples]
    return TrackBatch(
        video=torch.stack([sample.video for sample in samples]),
        tracks=torch.stack([sample.tracks for sample in samples]),
        visibility=torch.stack([sample.visibility for sample in samples]),
        valid=torch.stack([sample.valid for sample in samples]),
        queries=torch.stack([sample.queries for sample in samples]),
        redrawn=torch.tensor([sample.redrawn for sample in samples], dtype=torch.float32),
        names=tuple(sample.name for sample in samples),
        renderings=tuple(filter(None, (sample.rendering for sample in samples))) or None,
    )


def _rendered_sample(sample: TrackSample) -> TrackSample:
    if sample.rendering is None:
        return sample
    return replace(sample, video=render(*sample.rendering, sample.video), rendering=None)


def rendered(batch: TrackBatch) -> TrackBatch:
    """Return the batch with its planned augmentation applied, on its device."""
    if batch.renderings is None:
        return batch
    pairs = zip(batch.renderings, batch.video, strict=True)
    video = torch.stack([render(*how, frames) for how, frames in pairs])
    return replace(batch, video=video, renderings=None)


def redrawn_count(batch: TrackBatch) -> dict[str, Tensor]:
    """What `redrawn_metric` divides by."""
    return {"clips": torch.ones_like(batch.redrawn).sum()}


def redrawn_metric(batch: TrackBatch, counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return how many clips were rejected per accepted one: replacements are never silent."""
    return {"redrawn_clips": batch.redrawn.sum() / counts["clips"].clamp(min=1)}


# --- sequences -------------------------------------------------------------------------------


def make_missing_sequences(settings: KubricSettings) -> None:
    """Write the synthetic sequences described by `data.synthetic`, unless they exist.

    Every rank has to call this.
    """
    if settings.synthetic is not None:
        options = asdict(settings.synthetic)
        main_first(expendable()(lambda: write_sequences(settings.given_root(), **options)))


def training_sequences(settings: KubricSettings) -> list[Path]:
    """Return the sequences of `data.root` that are not held out."""
    sequences = find_sequences(settings.given_root())
    if len(sequences) <= settings.held_out:
        raise DataError(
            f"data.root={settings.root} has {len(sequences)} sequences and data.held_out="
            f"{settings.held_out} of them are kept for evaluation, so none is left to train "
            "on. Lower data.held_out or add sequences."
        )
    return sequences[settings.held_out :]


def sequences_to_try(sequences: list[Path], index: int, rng: np.random.Generator) -> Iterator[Path]:
    """Yield candidate sequences of a sample: several times the requested one, then random ones."""
    for attempt in range(TRIES):
        yield sequences[index if attempt < OWN_TRIES else rng.integers(len(sequences))]


def name_of(sequence: Path) -> str:
    """The same for a folder and for the file that it was packed into."""
    return sequence.name.removesuffix(SUFFIX)


# --- clips -----------------------------------------------------------------------------------


class Clip(NamedTuple):
    """Some frames of a sequence with all its tracks, before tracks are selected."""

    frames: NDArray[np.uint8]  # (T, 3, H, W)
    coords_xy: NDArray[np.float32]  # (N, T, 2)
    visible: NDArray[np.bool_]  # (N, T)
    rendering: Rendering | None = None  # of frames that are still to be cut to their size


def read_clip(sequence: Path, tracks: Tracks, indices: NDArray[np.intp]) -> Clip:
    """Decode these frames of a sequence and restrict its tracks to them."""
    frames = read_frames(sequence, indices)
    return Clip(frames, tracks.coords_xy[:, indices], tracks.visible[:, indices])


def refuse_shorter(sequence: Path, tracks: Tracks, frames: int, key: str) -> None:
    """Reject a sequence with fewer frames than the setting `key` requires."""
    length = tracks.coords_xy.shape[1]
    if length < frames:
        raise DataError(
            f"{sequence} has {length} frames, {key}={frames} asks for more. Lower {key}, or remove "
            "the sequence from the data set."
        )


def augmented(
    clip: Clip, settings: KubricSettings, positions: Positions, rng: np.random.Generator
) -> Clip:
    """Return the clip with sampled colors, zoom, crop and flips.

    With `augment_on_device` only the points are transformed here, and the frames by `rendered`.
    """
    height, width = clip.frames.shape[2:]
    crop_height, crop_width = settings.crop_size
    plan = draw_plan(
        len(clip.frames), (height, width), (crop_height, crop_width), settings.augmentation, rng
    )
    coords, visible, corners = move_points(plan, clip.coords_xy, clip.visible)
    visible = visible & inside(coords, settings.crop_size, positions)
    if settings.augment_on_device:
        return Clip(clip.frames, coords, visible, Rendering(plan, corners))
    frames = render(plan, corners, torch.from_numpy(clip.frames)).numpy()
    return Clip(frames, coords, visible)


def crop(clip: Clip, top: int, left: int, size: list[int], positions: Positions) -> Clip:
    """Crop a window from every frame; a point outside it is not visible."""
    height, width = size
    coords = clip.coords_xy - np.array([left, top], dtype=np.float32)
    frames = clip.frames[:, :, top : top + height, left : left + width]
    return Clip(frames, coords, clip.visible & inside(coords, size, positions))


def centre_crop(clip: Clip, size: list[int], positions: Positions, sequence: Path) -> Clip:
    """Crop (height, width) from the center of every frame."""
    spare_rows, spare_columns = margins(clip, size, sequence)
    return crop(clip, spare_rows // 2, spare_columns // 2, size, positions)


def margins(clip: Clip, size: list[int], sequence: Path) -> tuple[int, int]:
    """Return the rows and columns of the frames beyond the crop."""
    height, width = clip.frames.shape[2:]
    if height < size[0] or width < size[1]:
        raise DataError(
            f"{sequence} has frames of {height}x{width} (height x width), less than "
            f"data.crop_size={list(size)}. Lower data.crop_size."
        )
    return height - size[0], width - size[1]


def inside(
    coords_xy: NDArray[np.float32], size: list[int], positions: Positions
) -> NDArray[np.bool_]:
    """Return which points (..., 2) are in an image of (height, width), last pixel included."""
    x, y = coords_xy[..., 0], coords_xy[..., 1]
    return (x >= 0) & (x <= size[1] - positions) & (y >= 0) & (y <= size[0] - positions)


def to_sample(
    clip: Clip,
    chosen: NDArray[np.intp],
    query_frames: NDArray[np.intp],  # of each chosen track
    points: int,
    name: str,
    redrawn: int = 0,
) -> TrackSample:
    """Return the selected tracks, padded to `points`; padding is excluded from losses."""
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
        redrawn=redrawn,
        rendering=clip.rendering,
    )
