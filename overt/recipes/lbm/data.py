"""Training and evaluation clips of LBM.

B clips, T frames, N tracks, H x W pixels; positions are (x, y) in pixels, queries (t, x, y) with t
counted from the first frame of the clip.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overt.data.tracking.clips import (
    TRIES,
    Clip,
    Positions,
    TrackSample,
    augmented,
    centre_crop,
    name_of,
    read_clip,
    refuse_shorter,
    sequences_to_try,
    to_sample,
    training_sequences,
)
from overt.data.tracking.clips import TrackBatch as TrackBatch  # the batch of this recipe
from overt.data.tracking.packed import read_tracks
from overt.errors import DataError
from overt.metrics import scored_clips
from overt.recipes.lbm.config import DataSettings, Settings

# The far edge itself belongs to no cell; the loss takes such a point for one outside, as published.
POSITIONS = Positions.SHARES


class KubricClips:
    """Training samples: clips of the sequences that are not held out."""

    def __init__(self, settings: DataSettings) -> None:
        self.settings = settings
        self.sequences = training_sequences(settings)

    def __len__(self) -> int:
        return len(self.sequences)

    def sample(self, index: int, rng: np.random.Generator) -> TrackSample:
        """Draw a clip of sequence `index`; a function of the arguments alone.

        A clip without a track that is visible in its first frame is drawn again, at last from
        other sequences; the sample says how often.
        """
        points = self.settings.points
        for redrawn, sequence in enumerate(sequences_to_try(self.sequences, index, rng)):
            clip = draw_clip(sequence, self.settings, rng)
            seen = np.flatnonzero(clip.visible[:, 0])
            if len(seen):
                chosen = rng.permutation(seen)[:points]
                frames = draw_query_frames(clip.visible[chosen], rng)
                return to_sample(clip, chosen, frames, points, name_of(sequence), redrawn)
        raise DataError(
            f"none of {TRIES} clips drawn for sample {index} has a track that is visible in its "
            f"first frame (last tried: {sequence}). Raise data.crop_size, use weaker augmentations "
            "or sequences with more tracks."
        )


def evaluation_clips(settings: Settings) -> scored_clips.EvaluationClips:
    """The clips that `evaluation.dataset` names."""
    return scored_clips.evaluation_clips(settings.data, settings.evaluation, POSITIONS)


def draw_clip(sequence: Path, settings: DataSettings, rng: np.random.Generator) -> Clip:
    """A random run of frames of a sequence, at the size and with the tracks to train on."""
    tracks, frames = read_tracks(sequence), settings.frames
    refuse_shorter(sequence, tracks, frames, "data.frames")
    latest = tracks.coords_xy.shape[1] - frames
    start = int(rng.integers(latest + 1)) if latest > 0 else 0
    clip = read_clip(sequence, tracks, start + np.arange(frames))
    if settings.augment:
        return augmented(clip, settings, POSITIONS, rng)
    return centre_crop(clip, settings.crop_size, POSITIONS, sequence)


def draw_query_frames(visible: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.intp]:
    """The frame (N,) in which each track is given: the first that shows it, for one track in four
    any that does; `visible` is (N, T)."""
    frames: NDArray[np.intp] = visible.argmax(axis=1)
    quarter = len(visible) // 4
    lots = np.where(visible[:quarter], rng.random(visible[:quarter].shape), -1.0)
    frames[:quarter] = lots.argmax(axis=1) if quarter else 0
    return frames
