"""Clips of unlabeled videos, with the points that a teacher tracks through them.

Section 3.2 of arXiv:2410.11831. Frames, crop, points and teacher are sampled from the sample's own
generator. T frames, N points, H x W pixels; queries are (t, x, y).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from overt.data.tracking.clips import OWN_TRIES, TRIES
from overt.data.tracking.corners import find_corners
from overt.data.tracking.settings import UnlabeledSettings
from overt.data.tracking.video_files import find_videos, frame_count, read_frames
from overt.errors import DataError

Frames = NDArray[np.uint8]  # (T, 3, H, W)


class ClipShape(NamedTuple):
    """How large clips are."""

    shortest: int  # frames
    longest: int  # frames, exclusive; `shortest` + 1 where all are equally long
    size: tuple[int, int]  # height, width
    points: int


@dataclass(frozen=True)
class UnlabeledSample:
    """One clip, and the teacher that labels it."""

    video: Tensor  # (T, 3, H, W) uint8
    queries: Tensor  # (N, 3) float32 (t, x, y)
    support: Tensor  # (S, 3) float32: random points that help some teachers
    teacher: int  # index into the list of teachers
    name: str
    redrawn: int = 0  # videos that could not be read before this one


@dataclass(frozen=True)
class UnlabeledBatch:
    """Clips of one shape."""

    video: Tensor  # (B, T, 3, H, W) uint8
    queries: Tensor  # (B, N, 3) float32
    support: Tensor  # (B, S, 3) float32
    teachers: tuple[int, ...]  # of each clip; on the host, where the choice is made
    redrawn: Tensor  # (B,) float32
    names: tuple[str, ...]


def stack_unlabeled(samples: Sequence[UnlabeledSample]) -> UnlabeledBatch:
    """Return samples of equal shapes as a batch."""
    lengths = sorted({len(sample.video) for sample in samples})
    if len(lengths) > 1:
        raise DataError(
            f"clips of {', '.join(map(str, lengths))} frames in one micro-batch; set "
            "training.batch_size=1, or data.random_sequence_len=null"
        )
    return UnlabeledBatch(
        video=torch.stack([sample.video for sample in samples]),
        queries=torch.stack([sample.queries for sample in samples]),
        support=torch.stack([sample.support for sample in samples]),
        teachers=tuple(sample.teacher for sample in samples),
        redrawn=torch.tensor([sample.redrawn for sample in samples], dtype=torch.float32),
        names=tuple(sample.name for sample in samples),
    )


class UnlabeledClips:
    """Training samples: random clips of the videos below a folder."""

    def __init__(
        self,
        root: Path | str,
        settings: UnlabeledSettings,
        shape: ClipShape,
        repeat: int = 1,
        held_out: int = 0,
    ) -> None:
        self.settings, self.shape, self.repeat = settings, shape, repeat
        videos = find_videos(root)
        if len(videos) <= held_out:
            raise DataError(
                f"data.root={root} has {len(videos)} videos and data.held_out={held_out} of them "
                "are kept out of training, so none is left. Lower data.held_out or add videos."
            )
        self.videos = videos[held_out:]

    def __len__(self) -> int:
        return len(self.videos) * self.repeat

    def sample(self, index: int, rng: np.random.Generator) -> UnlabeledSample:
        """Sample a clip of video `index` modulo their number; depends only on the arguments.

        An unreadable video is replaced by another; the sample counts these.
        """
        teacher = int(rng.integers(len(self.settings.teachers)))
        length = int(rng.integers(self.shape.shortest, self.shape.longest))
        for redrawn in range(TRIES):
            use_own_video = redrawn == 0 or (redrawn < OWN_TRIES and len(self.videos) == 1)
            number = (
                index % len(self.videos) if use_own_video else int(rng.integers(len(self.videos)))
            )
            try:
                frames = self._draw_frames(self.videos[number], length, rng)
            except DataError as error:
                reason = error
                continue
            frames = random_crop(frames, self.shape.size, rng)
            queries = draw_queries(frames, self.shape.points, self.settings, rng)
            support = random_points(self.settings.random_support, frames.shape, rng)
            return UnlabeledSample(
                torch.from_numpy(frames),
                torch.from_numpy(queries),
                torch.from_numpy(support),
                teacher,
                self.videos[number].name,
                redrawn,
            )
        raise DataError(
            f"{TRIES} videos in a row could not be read for sample {index}; the last: {reason}"
        )

    def _draw_frames(self, video: Path, length: int, rng: np.random.Generator) -> Frames:
        indices = clip_indices(frame_count(video), length, self.settings.largest_stride, rng, video)
        needed, back = np.unique(indices, return_inverse=True)
        return read_frames(video, needed)[back]


def clip_indices(
    frames: int, length: int, largest_stride: int, rng: np.random.Generator, video: Path
) -> NDArray[np.intp]:
    """Return the frames of a clip; a short video is extended by playing it backward and forward."""
    if frames < 2:
        raise DataError(f"{video}: it has {frames} frames; nothing moves in it. Remove it.")
    most = min(largest_stride, frames // length)
    stride = int(rng.integers(1, most)) if most > 1 else 1
    span = (length - 1) * stride + 1
    first = int(rng.integers(frames - span + 1)) if frames >= span else 0
    positions = first + stride * np.arange(length)
    period = 2 * (frames - 1)  # forth and back, the turning frames once
    folded = positions % period
    indices: NDArray[np.intp] = np.where(folded < frames, folded, period - folded)
    return indices


def random_crop(frames: Frames, size: tuple[int, int], rng: np.random.Generator) -> Frames:
    """Crop one window from all frames; smaller frames are enlarged first."""
    height, width = frames.shape[2:]
    scale = max(size[0] / height, size[1] / width)
    if scale > 1:
        larger = (max(size[1], round(width * scale)), max(size[0], round(height * scale)))
        pictures = (Image.fromarray(frame.transpose(1, 2, 0)) for frame in frames)
        resized = [picture.resize(larger, Image.Resampling.BILINEAR) for picture in pictures]
        frames = np.stack([np.asarray(picture).transpose(2, 0, 1) for picture in resized])
        height, width = frames.shape[2:]
    top = int(rng.integers(height - size[0] + 1))
    left = int(rng.integers(width - size[1] + 1))
    window = frames[:, :, top : top + size[0], left : left + size[1]]
    return np.ascontiguousarray(window)


def draw_queries(
    frames: Frames, count: int, settings: UnlabeledSettings, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Return queries (N, 3) at corners of a few frames in the first part of the clip.

    If there are too few corners, random points of those frames are added.
    """
    latest = int(len(frames) * settings.query_fraction)
    moments = rng.integers(0, min(latest, len(frames) - 1) + 1, settings.query_frames)
    per_frame = -(-count // settings.query_frames)
    rows = []
    for moment in moments:
        corners_xy = find_corners(frames[moment], per_frame)
        times = np.full((len(corners_xy), 1), moment)
        rows.append(np.concatenate([times, corners_xy], axis=1))
    queries = np.concatenate(rows).astype(np.float32)[:count]
    missing = count - len(queries)
    if missing:
        random_queries = random_points(missing, frames.shape, rng)
        random_queries[:, 0] = rng.choice(moments, missing)
        queries = np.concatenate([queries, random_queries])
    return queries


def random_points(
    count: int, shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Return random points (count, 3) of a video (T, 3, H, W)."""
    frames, _, height, width = shape
    points = rng.random((count, 3), dtype=np.float32)
    points *= np.array([frames, width - 1, height - 1], np.float32)
    points[:, 0] = np.minimum(np.floor(points[:, 0]), frames - 1)
    return points
