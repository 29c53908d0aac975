"""What LBM is scored on, held-out sequences or TAP-Vid videos, and the scores of a clip."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from overt.data.tapvid import TapVid
from overt.evaluation import Row
from overt.metrics.tracking import COLUMNS, tapvid_metrics
from overt.recipes.lbm.config import TAPVID, EvaluationSettings, Settings
from overt.recipes.lbm.data import HeldOutClips, TrackSample

SIDE = 256  # pixels of the image in which TAP-Vid measures distances


class TapVidClips:
    """The videos of a TAP-Vid data set, 256 x 256, with their queries."""

    def __init__(self, settings: EvaluationSettings) -> None:
        assert settings.dataset_root is not None, "the settings have refused that"
        self.videos = TapVid(
            settings.dataset_root,
            settings.dataset.removeprefix("tapvid_"),
            settings.query_mode,
            size=(SIDE, SIDE),
            fast=settings.fast,
        )
        self.query_mode = settings.query_mode
        self.names = self.videos.names

    def __len__(self) -> int:
        return len(self.videos)

    def sample(self, index: int) -> TrackSample:
        """One video; a track appears once for each of its queries.

        LBM takes a position for a share of the image times its size, where the reader counts from
        the first pixel's centre to the last one's.
        """
        video = self.videos.video(index)
        whole = SIDE / (SIDE - 1)
        queries = torch.from_numpy(video.queries_txy).clone()
        queries[:, 1:] *= whole
        visible = torch.from_numpy(~video.occluded.T)  # (T, N)
        return TrackSample(
            video=torch.from_numpy(video.video),
            tracks=torch.from_numpy(video.tracks_xy).transpose(0, 1) * whole,
            visibility=visible,
            valid=torch.ones(len(queries), dtype=torch.bool),
            queries=queries,
            name=video.name,
        )


def evaluation_clips(settings: Settings) -> HeldOutClips | TapVidClips:
    """The clips that `evaluation.dataset` names."""
    if settings.evaluation.dataset in TAPVID:
        return TapVidClips(settings.evaluation)
    return HeldOutClips(settings.data, settings.evaluation)


def clip_scores(clip: TrackSample, tracks: Tensor, visible: Tensor, query_mode: str) -> Row:
    """TAP-Vid metrics of tracks (T, N, 2), their pixels scaled to those of a 256 x 256 image."""
    height, width = clip.video.shape[-2:]
    scale = torch.tensor([SIDE / width, SIDE / height])
    return tapvid_metrics(
        clip.queries.numpy(),
        ~clip.visibility.T.numpy(),
        (clip.tracks * scale).transpose(0, 1).numpy(),
        ~visible.T.numpy(),
        (tracks * scale).transpose(0, 1).numpy(),
        query_mode,
    )


def score_clip(
    clip: TrackSample, track: Callable[[TrackSample], tuple[Tensor, Tensor]], query_mode: str
) -> Row:
    """The scores of a tracker beside those of points that never move nor vanish.

    A clip without a visible point to score has no score at all, and is not tracked.
    """
    still = clip.queries[:, 1:].expand_as(clip.tracks)
    static = clip_scores(clip, still, torch.ones_like(clip.visibility), query_mode)
    shown = {f"static_{name}": static[name] for name in COLUMNS.values()}
    if math.isnan(static["average_pts_within_thresh"]):
        return dict.fromkeys(static | shown, math.nan)
    return clip_scores(clip, *track(clip), query_mode) | shown
