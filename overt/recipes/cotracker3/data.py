"""Training and evaluation clips of CoTracker3.

B clips, T frames, N tracks, H x W pixels; positions are (x, y) with 0 at the center of the first
pixel, queries are (t, x, y) with t counted from the first frame of the clip.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from overt.data.mixture import Mixture
from overt.data.rng import sample_rng
from overt.data.tracking.clips import (
    TRIES,
    Clip,
    Positions,
    TrackSample,
    augmented,
    crop,
    margins,
    name_of,
    read_clip,
    sequences_to_try,
    stack_samples,
    to_sample,
    training_sequences,
)
from overt.data.tracking.clips import TrackBatch as TrackBatch  # the batch of this recipe
from overt.data.tracking.moving_shapes import SceneSettings, make_sequence
from overt.data.tracking.packed import read_tracks
from overt.data.tracking.unlabeled import (
    ClipShape,
    UnlabeledClips,
    UnlabeledSample,
    draw_queries,
    random_points,
)
from overt.errors import DataError
from overt.metrics import scored_clips
from overt.recipes.cotracker3.config import DataSettings, Settings

POSITIONS = Positions.CENTRES

# (height, width) of the frames of Kubric MOVi-F.
MOVI_F_SIZE = (512, 512)
EXAMPLE_SCENE = (32, 32)  # (height, width) of the scene whose tracks an example sample has

# Tracks that stray this far from the center of the crop, in pixels, are dropped: such points are on
# objects that were flung away or are behind the camera.
FAR = 1000.0


def collate(samples: list[TrackSample]) -> TrackBatch:
    """Stack samples; samples of different lengths are rejected, never truncated."""
    lengths = sorted({len(sample.video) for sample in samples})
    if len(lengths) > 1:
        raise DataError(
            f"clips of {', '.join(map(str, lengths))} frames in one micro-batch; they are not cut, "
            "since a sample would then depend on its neighbors. Set training.batch_size=1 and "
            "reach the global batch by accumulation, or data.random_sequence_len=null."
        )
    counts = sorted({sample.tracks.shape[1] for sample in samples})
    if len(counts) > 1:
        raise DataError(
            f"clips with {', '.join(map(str, counts))} tracks in one micro-batch; set the batch "
            "size to 1, or ask for fewer points (evaluation.points_per_sequence)."
        )
    batch = stack_samples(samples)
    # The reader rejects NaN, and a query is visible, hence in the frame: no frame is excluded.
    valid = batch.valid.unsqueeze(1).expand_as(batch.visibility).contiguous()
    return dataclasses.replace(batch, valid=valid)


class KubricClips:
    """Training samples: random clips of the sequences that are not held out."""

    def __init__(self, settings: DataSettings) -> None:
        self.settings = settings
        self.sequences = training_sequences(settings)

    def __len__(self) -> int:
        return len(self.sequences) * self.settings.repeat

    def sample(self, index: int, rng: np.random.Generator) -> TrackSample:
        """Sample a clip of sequence `index` modulo their number; depends only on the arguments.

        A clip with too few candidate tracks is resampled, finally from other sequences; the sample
        counts these attempts.
        """
        settings = with_drawn_number(self.settings, rng)
        num_tracks = settings.traj_per_sample
        candidate_counts = []
        to_try = sequences_to_try(self.sequences, index % len(self.sequences), rng)
        for redrawn, sequence in enumerate(to_try):
            clip = draw_clip(sequence, settings, rng)
            candidates = _candidates(clip, settings.sample_vis_last_frame)
            if len(candidates) >= num_tracks:
                return _choose(clip, candidates, settings, rng, name_of(sequence), redrawn)
            candidate_counts.append(len(candidates))
        raise DataError(
            f"data.traj_per_sample={num_tracks}, but {TRIES} clips drawn for sample {index} had "
            f"only {min(candidate_counts)} to {max(candidate_counts)} tracks to choose from (last "
            f"tried: {sequence}). Lower data.traj_per_sample, or use sequences with more tracks."
        )


def with_drawn_number(settings: DataSettings, rng: np.random.Generator) -> DataSettings:
    """Return the settings of one sample, with the random number of tracks of `random_number_traj`.

    More tracks come with fewer frames, so that a step needs about the same memory.
    """
    if not settings.random_number_traj:
        return settings
    tracks = int(rng.integers(1, settings.traj_per_sample))
    fraction, length = tracks / settings.traj_per_sample, settings.sequence_len
    settings = dataclasses.replace(settings, random_number_traj=False)
    if settings.random_sequence_len is None:
        frames = 8 * max(1, int(2 * fraction + (1 - fraction) * length // 8))
        return dataclasses.replace(settings, traj_per_sample=tracks, sequence_len=frames)
    middle = int(10 * fraction + (1 - fraction) * length)
    return dataclasses.replace(
        settings,
        traj_per_sample=tracks,
        sequence_len=middle + 2,
        random_sequence_len=max(1, middle - 2),
    )


def example_sample(settings: DataSettings, index: int) -> TrackSample:
    """Generate an example: noise frames, tracks of moving shapes, maximum length."""
    rng = sample_rng(0, 0, index)
    clip = cut_to_size(_example_clip(settings, index, rng), settings, rng, Path("an example"))
    candidates = _candidates(clip, settings.sample_vis_last_frame)
    # A small crop shows few tracks of its frames, so some may be chosen repeatedly.
    candidates = np.resize(candidates, max(len(candidates), settings.traj_per_sample))
    return _choose(clip, candidates, settings, rng, "example", redrawn=0)


def _example_clip(settings: DataSettings, index: int, rng: np.random.Generator) -> Clip:
    if settings.synthetic is not None:
        height, width = settings.synthetic.height, settings.synthetic.width
    else:
        height, width = (max(pair) for pair in zip(MOVI_F_SIZE, settings.crop_size, strict=True))
    length = settings.sequence_len - (settings.random_sequence_len is not None)  # end exclusive
    points = 4 * settings.traj_per_sample
    # Only the tracks are used, so a small scene is rendered quickly and enlarged.
    scene = SceneSettings(length, *EXAMPLE_SCENE, points=points, seed=0, shapes=4, speed=1.0)
    _, tracks = make_sequence(scene, index)
    enlarge = np.array([width, height]) / np.array(EXAMPLE_SCENE[::-1])
    frames = rng.integers(0, 256, (length, 3, height, width), dtype=np.uint8)
    return Clip(frames, (tracks.coords_xy * enlarge).astype(np.float32), tracks.visible)


def training_clips(settings: DataSettings) -> KubricClips | Mixture:
    """Return the training samples of the settings: from `root`, or mixed from `sources`."""
    if settings.sources is None:
        return KubricClips(settings)
    clips = []
    for index, source in enumerate(settings.sources):
        # Held-out sequences are excluded from every source that lists them.
        root = None if settings.root is None else Path(settings.root).resolve()
        shared = Path(source.root).resolve() == root
        held_out = settings.held_out if shared else 0
        part = dataclasses.replace(settings, root=source.root, held_out=held_out, sources=None)
        try:
            clips.append(KubricClips(part))
        except DataError as error:
            raise DataError(f"data.sources[{index}]: {error}") from error
    return Mixture(clips, [source.weight for source in settings.sources])


def unlabeled_clips(settings: DataSettings) -> UnlabeledClips:
    """Return the clips of unlabeled videos, which teachers label."""
    assert settings.unlabeled is not None
    return UnlabeledClips(
        settings.given_root(),
        settings.unlabeled,
        clip_shape(settings),
        settings.repeat,
        settings.held_out,
    )


def unlabeled_example(settings: DataSettings, index: int) -> UnlabeledSample:
    """Generate an example clip of noise with the largest possible length."""
    assert settings.unlabeled is not None
    rng, shape = sample_rng(0, 0, index), clip_shape(settings)
    frames = rng.integers(0, 256, (shape.longest - 1, 3, *shape.size), dtype=np.uint8)
    queries = draw_queries(frames, shape.points, settings.unlabeled, rng)
    support = random_points(settings.unlabeled.random_support, frames.shape, rng)
    return UnlabeledSample(
        torch.from_numpy(frames),
        torch.from_numpy(queries),
        torch.from_numpy(support),
        teacher=0,
        name="example",
    )


def clip_shape(settings: DataSettings) -> ClipShape:
    """Return the sizes of clips from unlabeled videos."""
    longest, shortest = settings.sequence_len, settings.random_sequence_len
    height, width = settings.crop_size
    ends = (longest, longest + 1) if shortest is None else (shortest, longest)
    return ClipShape(*ends, (height, width), settings.traj_per_sample)


def evaluation_clips(settings: Settings) -> scored_clips.EvaluationClips:
    """The clips that `evaluation.dataset` names."""
    return scored_clips.evaluation_clips(settings.data, settings.evaluation, POSITIONS)


def draw_clip(sequence: Path, settings: DataSettings, rng: np.random.Generator) -> Clip:
    """Sample consecutive frames of a sequence, with training size and tracks."""
    tracks = read_tracks(sequence)
    indices = frame_indices(tracks.coords_xy.shape[1], settings, rng, sequence)
    return cut_to_size(read_clip(sequence, tracks, indices), settings, rng, sequence)


def cut_to_size(
    clip: Clip, settings: DataSettings, rng: np.random.Generator, sequence: Path
) -> Clip:
    """Augment the frames, or only crop them, and drop tracks that stray; errors name `sequence`."""
    if settings.augment:
        clip = augmented(clip, settings, POSITIONS, rng)
    else:
        clip = random_crop(clip, settings.crop_size, rng, sequence)
    return _drop_far(clip, settings.crop_size)


def frame_indices(
    length: int, settings: DataSettings, rng: np.random.Generator, sequence: Path
) -> NDArray[np.intp]:
    """Sample length, frame rate and start of the clip."""
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


def random_crop(clip: Clip, size: list[int], rng: np.random.Generator, sequence: Path) -> Clip:
    """Crop to (height, width): centered vertically, random horizontally."""
    spare_rows, spare_columns = margins(clip, size, sequence)
    left = int(rng.integers(spare_columns)) if spare_columns > 0 else 0
    return crop(clip, spare_rows // 2, left, size, POSITIONS)


def _drop_far(clip: Clip, size: list[int]) -> Clip:
    """Drop tracks that stray far from a crop of (height, width), even if not yet cropped."""
    height, width = size
    offset = clip.coords_xy - np.array([width / 2, height / 2], dtype=np.float32)
    near = (np.hypot(offset[..., 0], offset[..., 1]) < FAR).all(axis=1)  # (N,)
    return clip._replace(coords_xy=clip.coords_xy[near], visible=clip.visible[near])


def _candidates(clip: Clip, with_last_frame: bool) -> NDArray[np.intp]:
    """Return the tracks visible in the first, the middle and optionally the last frame.

    A track in several of these lists is repeated, and may be sampled more than once.
    """
    length = clip.visible.shape[1]
    moments = [0, length // 2, length - 1] if with_last_frame else [0, length // 2]
    return np.concatenate([np.flatnonzero(clip.visible[:, moment]) for moment in moments])


def _choose(
    clip: Clip,
    candidates: NDArray[np.intp],
    settings: DataSettings,
    rng: np.random.Generator,
    name: str,
    redrawn: int,
) -> TrackSample:
    """Sample the tracks and their queries."""
    num_tracks = settings.traj_per_sample
    chosen = rng.permutation(candidates)[:num_tracks]
    frames = _query_frames(clip.visible[chosen], settings.query_sampling, rng)
    return to_sample(clip, chosen, frames, num_tracks, name, redrawn)


def _query_frames(
    visible: NDArray[np.bool_], sampling: str, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Sample the query frame (N,) of each track, one in which it is visible (N, T)."""
    lots = np.where(visible, rng.random(visible.shape), -1.0)
    anywhere: NDArray[np.intp] = lots.argmax(axis=1)
    if sampling == "random":
        return anywhere
    frames: NDArray[np.intp] = visible.argmax(axis=1)  # the first visible one
    quarter = len(visible) // 4
    frames[:quarter] = anywhere[:quarter]
    return frames
