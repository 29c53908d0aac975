"""What LBM is scored on, held-out sequences or TAP-Vid videos, and the scores of a clip."""

from __future__ import annotations

import torch
from torch import Tensor

from overt.data.tapvid import TapVid
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


def to_tapvid_pixels(clip: TrackSample) -> Tensor:
    """(2,): what turns x and y of the clip into pixels of a 256 x 256 image."""
    height, width = clip.video.shape[-2:]
    return torch.tensor([SIDE / width, SIDE / height])
