"""What point trackers are scored on, held-out sequences or TAP-Vid videos, and the scores of each.

T frames, N tracks; positions are (x, y) in pixels of the clip, queries (t, x, y).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from overt.data.tracking.clips import (
    QUERY_MARGIN,
    Positions,
    TrackSample,
    centre_crop,
    name_of,
    read_clip,
    refuse_shorter,
    to_sample,
)
from overt.data.tracking.dynamic_replica import DynamicReplica
from overt.data.tracking.packed import find_sequences, read_tracks
from overt.data.tracking.point_odyssey import PointOdyssey
from overt.data.tracking.settings import (
    ANNOTATED,
    DYNAMIC_REPLICA,
    TAPVID,
    KubricSettings,
    ScoringSettings,
)
from overt.data.tracking.tapvid import TapVid
from overt.distributed import World
from overt.errors import DataError
from overt.evaluation import NamedRow, Row, score_each, with_names
from overt.metrics.tracking import score_clip

SIDE = 256  # pixels of the image in which TAP-Vid measures distances


class HeldOutClips:
    """The start of every held-out sequence, always the same."""

    query_mode = "first"

    def __init__(
        self,
        data: KubricSettings,
        evaluation: ScoringSettings,
        positions: Positions,
    ) -> None:
        if data.held_out < 1:
            raise DataError(
                "data.held_out=0 leaves no sequence to evaluate on; set it to the number of "
                "sequences to keep out of training."
            )
        self.crop_size = data.crop_size
        self.settings = evaluation
        self.positions = positions
        self.sequences = find_sequences(data.given_root())[: data.held_out]
        self.names = [name_of(sequence) for sequence in self.sequences]

    def __len__(self) -> int:
        return len(self.sequences)

    def where(self, index: int) -> str:
        """The sequence, for messages."""
        return str(self.sequences[index])

    def sample(self, index: int) -> TrackSample:
        """The center of the first frames, points spread evenly, queried where first seen."""
        sequence, frames = self.sequences[index], self.settings.frames
        tracks = read_tracks(sequence)
        refuse_shorter(sequence, tracks, frames, "evaluation.frames")
        clip = read_clip(sequence, tracks, np.arange(frames))
        clip = centre_crop(clip, self.crop_size, self.positions, sequence)
        visible_tracks = np.flatnonzero(clip.visible.any(axis=1))
        if len(visible_tracks) == 0:
            raise DataError(
                f"{sequence}: no track is visible in the first {frames} frames. Raise "
                "evaluation.frames or data.crop_size, or remove it from the data set."
            )
        count = min(self.settings.points_per_sequence, len(visible_tracks))
        chosen = visible_tracks[
            np.linspace(0, len(visible_tracks) - 1, count).round().astype(np.intp)
        ]
        query_frames = clip.visible[chosen].argmax(axis=1)
        return to_sample(clip, chosen, query_frames, count, self.names[index])


class TapVidClips:
    """The videos of a TAP-Vid data set, 256 x 256, with their queries."""

    def __init__(self, evaluation: ScoringSettings, positions: Positions) -> None:
        assert evaluation.dataset_root is not None, "the settings have refused that"
        self.videos = TapVid(
            evaluation.dataset_root,
            evaluation.dataset.removeprefix("tapvid_"),
            evaluation.query_mode,
            size=(SIDE, SIDE),
            fast=evaluation.fast,
        )
        self.query_mode = evaluation.query_mode
        self.positions = positions
        self.names = self.videos.names

    def __len__(self) -> int:
        return len(self.videos)

    def where(self, index: int) -> str:
        """File and video, for messages."""
        return self.videos.where(index)

    def sample(self, index: int) -> TrackSample:
        """One video; a track appears once for each of its queries."""
        video = self.videos.video(index)
        # The reader counts from the first pixel's center to the last one's.
        scale = (SIDE - self.positions) / (SIDE - Positions.CENTRES)
        queries = torch.from_numpy(video.queries_txy).clone()
        # Published files have visible points beyond the image; those are followed from its edge.
        queries[:, 1:] = (queries[:, 1:] * scale).clamp(-QUERY_MARGIN, SIDE - 1 + QUERY_MARGIN)
        return TrackSample(
            video=torch.from_numpy(video.video),
            tracks=torch.from_numpy(video.tracks_xy).transpose(0, 1) * scale,
            visibility=torch.from_numpy(~video.occluded.T),
            valid=torch.ones(len(queries), dtype=torch.bool),
            queries=queries,
            name=video.name,
        )


class AnnotatedClips:
    """The videos of Dynamic Replica or PointOdyssey, queried in their first frame."""

    query_mode = "first"

    def __init__(self, evaluation: ScoringSettings, positions: Positions) -> None:
        assert evaluation.dataset_root is not None, "the settings have refused that"
        kind = DynamicReplica if evaluation.dataset == DYNAMIC_REPLICA else PointOdyssey
        self.videos: DynamicReplica | PointOdyssey = kind(
            evaluation.dataset_root,
            frames=evaluation.frames,
            points=evaluation.points_per_sequence,
        )
        self.positions = positions
        self.names = self.videos.names

    def __len__(self) -> int:
        return len(self.videos)

    def where(self, index: int) -> str:
        """File and video, for messages."""
        return self.videos.where(index)

    def sample(self, index: int) -> TrackSample:
        """One clip; where its labels mean nothing, points are hidden and not scored."""
        clip = self.videos.clip(index)
        size = np.array(clip.frames.shape[:1:-1], np.float32)  # width, height
        scale = (size - self.positions) / (size - Positions.CENTRES)
        tracks = clip.coords_xy.transpose(1, 0, 2) * scale.astype(np.float32)  # (T, N, 2)
        queries = np.concatenate([np.zeros((tracks.shape[1], 1)), tracks[0]], axis=1)
        return TrackSample(
            video=torch.from_numpy(clip.frames),
            tracks=torch.from_numpy(np.ascontiguousarray(tracks)),
            visibility=torch.from_numpy(np.ascontiguousarray(clip.visible.T)),
            valid=torch.ones(len(queries), dtype=torch.bool),
            queries=torch.from_numpy(queries.astype(np.float32)),
            name=self.names[index],
            scored=None if clip.valid is None else torch.from_numpy(clip.valid.T.copy()),
        )


EvaluationClips = HeldOutClips | TapVidClips | AnnotatedClips


def evaluation_clips(
    data: KubricSettings,
    evaluation: ScoringSettings,
    positions: Positions,
) -> EvaluationClips:
    """The clips that `evaluation.dataset` names."""
    if evaluation.dataset in TAPVID:
        return TapVidClips(evaluation, positions)
    if evaluation.dataset in ANNOTATED:
        return AnnotatedClips(evaluation, positions)
    return HeldOutClips(data, evaluation, positions)


def score_clips(
    clips: EvaluationClips,
    track: Callable[[TrackSample], tuple[Tensor, Tensor]],  # positions (T, N, 2), visible (T, N)
    world: World,
) -> list[NamedRow]:
    """The scores of each clip, beside those of points that never move; every rank has all."""

    def score(index: int) -> Row:
        clip = clips.sample(index)
        scale_xy = to_tapvid_pixels(clip, clips.positions)
        try:
            return score_clip(clip, track, clips.query_mode, scale_xy)
        except DataError as error:  # a tracker does not know where its clip comes from
            raise DataError(f"{clips.where(index)}: {error}") from error

    rows = score_each(world, len(clips), score)
    return with_names(clips.names, rows)


def to_tapvid_pixels(clip: TrackSample, positions: Positions) -> Tensor:
    """(2,): what turns x and y of a clip into pixels of a 256 x 256 image."""
    height, width = clip.video.shape[-2:]
    last = SIDE - positions
    return torch.tensor([last / (width - positions), last / (height - positions)])


def further_recipes(recipe: Any) -> dict[str, Any]:
    """Return the recipe of a tracker with the settings of each set in `evaluation.also`."""
    settings = recipe.settings
    return {
        name: type(recipe)(replace(settings, evaluation=evaluation))
        for name, evaluation in settings.evaluation.further_sets().items()
    }
