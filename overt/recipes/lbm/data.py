"""Training and evaluation clips of LBM.

B clips, T frames, N tracks, H x W pixels; positions are (x, y) in pixels, queries (t, x, y) with t
counted from the first frame of the clip.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overt.data.rng import sample_rng
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
from overt.data.tracking.moving_shapes import SceneSettings, make_sequence
from overt.data.tracking.packed import read_tracks
from overt.errors import DataError
from overt.metrics import scored_clips
from overt.recipes.lbm.config import DataSettings, Settings

# The far edge itself is in no cell; the loss treats such a point as outside, as published.
POSITIONS = Positions.SHARES

KUBRIC_SIZE = (512, 512)  # (height, width) of the frames of the published sequences
EXAMPLE_SCENE = (32, 32)  # (height, width) of the scene whose tracks an example sample has


class KubricClips:
    """Training samples: clips of the sequences that are not held out."""

    def __init__(self, settings: DataSettings) -> None:
        self.settings = settings
        self.sequences = training_sequences(settings)

    def __len__(self) -> int:
        return len(self.sequences)

    def sample(self, index: int, rng: np.random.Generator) -> TrackSample:
        """Sample a clip of sequence `index`; depends only on the arguments.

        A clip without a track that is visible in its first frame is resampled, finally from other
        sequences; the sample counts these attempts.
        """
        points = self.settings.points
        for redrawn, sequence in enumerate(sequences_to_try(self.sequences, index, rng)):
            clip = draw_clip(sequence, self.settings, rng)
            if clip.visible[:, 0].any():
                return _choose(clip, points, rng, name_of(sequence), redrawn)
        raise DataError(
            f"none of {TRIES} clips drawn for sample {index} has a track that is visible in its "
            f"first frame (last tried: {sequence}). Raise data.crop_size, use weaker augmentations "
            "or sequences with more tracks."
        )


def example_sample(settings: DataSettings, index: int) -> TrackSample:
    """Generate an example sample: noise frames, tracks of moving shapes."""
    if settings.synthetic is not None:
        height, width = settings.synthetic.height, settings.synthetic.width
    else:
        height, width = (max(pair) for pair in zip(KUBRIC_SIZE, settings.crop_size, strict=True))
    length, points = settings.frames, 4 * settings.points
    # Only the tracks are used, so a small scene is rendered quickly and enlarged.
    scene = SceneSettings(length, *EXAMPLE_SCENE, points=points, seed=0, shapes=4, speed=1.0)
    _, tracks = make_sequence(scene, index)
    enlarge = np.array([width, height]) / np.array(EXAMPLE_SCENE[::-1])
    rng = sample_rng(0, 0, index)
    frames = rng.integers(0, 256, (length, 3, height, width), dtype=np.uint8)
    clip = Clip(frames, (tracks.coords_xy * enlarge).astype(np.float32), tracks.visible)
    clip = cut_to_size(clip, settings, rng, Path("an example"))
    return _choose(clip, settings.points, rng, "example", redrawn=0)


def evaluation_clips(settings: Settings) -> scored_clips.EvaluationClips:
    """The clips that `evaluation.dataset` names."""
    return scored_clips.evaluation_clips(settings.data, settings.evaluation, POSITIONS)


def draw_clip(sequence: Path, settings: DataSettings, rng: np.random.Generator) -> Clip:
    """Sample consecutive frames of a sequence, with training size and tracks."""
    tracks, frames = read_tracks(sequence), settings.frames
    refuse_shorter(sequence, tracks, frames, "data.frames")
    latest = tracks.coords_xy.shape[1] - frames
    start = int(rng.integers(latest + 1)) if latest > 0 else 0
    clip = read_clip(sequence, tracks, start + np.arange(frames))
    return cut_to_size(clip, settings, rng, sequence)


def cut_to_size(
    clip: Clip, settings: DataSettings, rng: np.random.Generator, sequence: Path
) -> Clip:
    """Augment the frames, or only crop them; errors name `sequence`."""
    if settings.augment:
        return augmented(clip, settings, POSITIONS, rng)
    return centre_crop(clip, settings.crop_size, POSITIONS, sequence)


def _choose(
    clip: Clip, points: int, rng: np.random.Generator, name: str, redrawn: int
) -> TrackSample:
    """Sample tracks among those visible in the first frame, and their queries."""
    chosen = rng.permutation(np.flatnonzero(clip.visible[:, 0]))[:points]
    frames = draw_query_frames(clip.visible[chosen], rng)
    return to_sample(clip, chosen, frames, points, name, redrawn)


def draw_query_frames(visible: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.intp]:
    """The frame (N,) in which each track is given: the first that shows it, for one track in four
    any that does; `visible` is (N, T)."""
    frames: NDArray[np.intp] = visible.argmax(axis=1)
    quarter = len(visible) // 4
    lots = np.where(visible[:quarter], rng.random(visible[:quarter].shape), -1.0)
    frames[:quarter] = lots.argmax(axis=1) if quarter else 0
    return frames
