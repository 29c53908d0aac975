"""What CoTracker3 is scored on, held-out sequences or TAP-Vid videos, and the scores of a clip."""

from __future__ import annotations

import torch
from torch import Tensor

from overt.data.tapvid import TapVid
from overt.recipes.cotracker3.config import TAPVID, EvaluationSettings, Settings
from overt.recipes.cotracker3.data import HeldOutClips, TrackSample


class TapVidClips:
    """The videos of a TAP-Vid data set, 256 x 256, with their queries."""

    def __init__(self, settings: EvaluationSettings) -> None:
        assert settings.dataset_root is not None, "the settings have refused that"
        self.videos = TapVid(
            settings.dataset_root,
            settings.dataset.removeprefix("tapvid_"),
            settings.query_mode,
            fast=settings.fast,
        )
        self.query_mode = settings.query_mode
        self.names = self.videos.names

    def __len__(self) -> int:
        return len(self.videos)

    def sample(self, index: int) -> TrackSample:
        """One video; a track appears once for each of its queries."""
        video = self.videos.video(index)
        visible = torch.from_numpy(~video.occluded.T)  # (T, N)
        return TrackSample(
            video=torch.from_numpy(video.video),
            tracks=torch.from_numpy(video.tracks_xy).transpose(0, 1),
            visibility=visible,
            valid=torch.ones_like(visible),
            queries=torch.from_numpy(video.queries_txy),
            name=video.name,
        )


def evaluation_clips(settings: Settings) -> HeldOutClips | TapVidClips:
    """The clips that `evaluation.dataset` names."""
    if settings.evaluation.dataset in TAPVID:
        return TapVidClips(settings.evaluation)
    return HeldOutClips(settings.data, settings.evaluation)


def to_tapvid_pixels(clip: TrackSample) -> Tensor:
    """(2,): what turns x and y of the clip into pixels of a 256 x 256 image."""
    height, width = clip.video.shape[-2:]
    return torch.tensor([255.0 / (width - 1), 255.0 / (height - 1)])
