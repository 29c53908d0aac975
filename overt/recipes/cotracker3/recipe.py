"""CoTracker3 as a recipe: what the engine needs to train and score it, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from overt.data.synthetic_kubric import write_sequences
from overt.distributed import World, barrier, is_main_process
from overt.errors import ConfigError
from overt.evaluation import Row, mean_of_rows, score_each
from overt.metrics.tracking import tapvid_metrics
from overt.recipe import SampleSource, StepOutput
from overt.recipes.cotracker3 import loss as tracking_loss
from overt.recipes.cotracker3.config import DataSettings, Settings
from overt.recipes.cotracker3.data import (
    HeldOutClips,
    TrackBatch,
    TrackSample,
    collate,
    training_clips,
)
from overt.recipes.cotracker3.loss import Targets
from overt.recipes.cotracker3.model import CoTracker3, CoTracker3Offline
from overt.recipes.cotracker3.online import CoTracker3Online
from overt.recipes.cotracker3.windows import since_query, sliding_windows
from overt.viz.tracks import draw_tracks

POINTS_DRAWN = 24


class _CoTracker3Recipe:
    """All but the choice of the model and the windows in which it is trained."""

    model_class: ClassVar[type[CoTracker3]]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def windows(self, frames: int) -> list[slice]:
        """The windows in which the model sees a clip."""
        raise NotImplementedError

    def supervised(self, batch: TrackBatch) -> Tensor:
        """In which frames the positions are learned, (B, T, N) bool."""
        raise NotImplementedError

    def targets(self, batch: TrackBatch) -> list[Targets]:
        """The truth in each window."""
        visible, valid = batch.visibility.float(), self.supervised(batch).float()
        return [
            Targets(batch.tracks[:, span], visible[:, span], valid[:, span])
            for span in self.windows(batch.tracks.shape[1])
        ]

    def build_model(self) -> CoTracker3:
        sizes = dataclasses.asdict(self.settings.model)
        del sizes["train_iters"], sizes["eval_iters"], sizes["bf16_inputs"]
        return self.model_class(**sizes)

    def build_dataset(self) -> SampleSource:
        make_missing_data(self.settings.data)
        return training_clips(self.settings.data)

    def collate(self, samples: list[TrackSample]) -> TrackBatch:
        return collate(samples)

    def blocks(self, model: CoTracker3) -> list[nn.Module]:
        # Few and large: the transformer runs in every iteration, as one unit.
        return [model.fnet, model.corr_mlp, model.updateformer]

    def counts(self, batch: TrackBatch) -> dict[str, Tensor]:
        windows = tracking_loss.counts(self.targets(batch))
        # Windows overlap, but the error that is shown counts every frame once.
        return windows | {"visible_once": (self.supervised(batch) & batch.visibility).sum()}

    def loss(
        self, model: nn.Module, batch: TrackBatch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        video, queries = batch.video, batch.queries
        if self.settings.model.bf16_inputs:
            video, queries = video.bfloat16(), queries.bfloat16().float()
        tracks = model(video, queries, self.settings.model.train_iters, is_train=True)
        # The losses are float32 whatever the model computes in.
        with torch.autocast(video.device.type, enabled=False):
            terms = tracking_loss.losses(
                tracks.train_data.windows, self.targets(batch), counts, self.settings.loss
            )
            seen = self.supervised(batch) & batch.visibility
            pixels = (tracks.tracks_xy.detach() - batch.tracks).norm(dim=-1)
            error = (pixels * seen).sum() / counts["visible_once"].clamp(min=1)
        return StepOutput(terms, {"visible_error_px": error})

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        """TAP-Vid scores on the held-out sequences, beside those of points that never move."""
        clips = HeldOutClips(self.settings.data, self.settings.evaluation)

        def score(index: int) -> Row:
            clip = clips.sample(index)
            tracks, visible = self.track(model, clip)
            still = clip.queries[:, 1:].expand_as(clip.tracks)
            baseline = clip_scores(clip, still, torch.ones_like(visible))
            shown = ("average_jaccard", "average_pts_within_thresh", "occlusion_accuracy")
            return clip_scores(clip, tracks, visible) | {
                f"static_{name}": baseline[name] for name in shown
            }

        return mean_of_rows(score_each(world, len(clips), score))

    def visualize(self, model: nn.Module) -> dict[str, Tensor]:
        """Predicted beside true tracks of the first held-out sequence."""
        clip = HeldOutClips(self.settings.data, self.settings.evaluation).sample(0)
        tracks, visible = self.track(model, clip)
        count = clip.tracks.shape[1]
        few = torch.linspace(0, count - 1, min(POINTS_DRAWN, count)).round().long()
        picture = draw_tracks(
            clip.video,
            tracks[:, few],
            visible[:, few],
            truth=clip.tracks[:, few],
            truth_visible=clip.visibility[:, few],
        )
        return {"tracks": picture}

    def track(self, model: nn.Module, clip: TrackSample) -> tuple[Tensor, Tensor]:
        """Positions (T, N, 2) and visibility (T, N) of a clip's queries, on the CPU."""
        device = next(model.parameters()).device
        video, queries = clip.video[None].to(device), clip.queries[None].to(device)
        tracks = model(video, queries, self.settings.model.eval_iters)
        score = tracks.visibility[0] * tracks.confidence[0]
        visible = score > self.settings.evaluation.visible_threshold
        return tracks.tracks_xy[0].cpu(), visible.cpu()


class CoTracker3OfflineRecipe(_CoTracker3Recipe):
    """The tracker that sees a whole clip at once, before and after the query."""

    model_class = CoTracker3Offline

    def windows(self, frames: int) -> list[slice]:
        return [slice(0, frames)]

    def supervised(self, batch: TrackBatch) -> Tensor:
        return batch.valid


class CoTracker3OnlineRecipe(_CoTracker3Recipe):
    """The tracker that sees one window after the other, and follows points from their query on."""

    model_class = CoTracker3Online

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        if settings.data.random_sequence_len is not None:
            raise ConfigError(
                f"data.random_sequence_len={settings.data.random_sequence_len}, but the online "
                "model is trained on clips with equally many windows, whose losses are averaged "
                "window by window; set data.random_sequence_len=null"
            )

    def windows(self, frames: int) -> list[slice]:
        return sliding_windows(frames, self.settings.model.window_len)

    def supervised(self, batch: TrackBatch) -> Tensor:
        return batch.valid & since_query(batch.queries[..., 0], batch.valid.shape[1])


def make_missing_data(settings: DataSettings) -> None:
    """Write the synthetic sequences that `data.synthetic` describes, unless they are there."""
    if settings.synthetic is not None and is_main_process():
        write_sequences(settings.root, **dataclasses.asdict(settings.synthetic))
    barrier()


def clip_scores(clip: TrackSample, tracks: Tensor, visible: Tensor) -> Row:
    """TAP-Vid metrics of one clip, its pixels scaled to those of a 256 x 256 image."""
    height, width = clip.video.shape[-2:]
    scale = torch.tensor([255.0 / (width - 1), 255.0 / (height - 1)])
    return tapvid_metrics(
        clip.queries.numpy(),
        ~clip.visibility.T.numpy(),
        (clip.tracks * scale).transpose(0, 1).numpy(),
        ~visible.T.numpy(),
        (tracks * scale).transpose(0, 1).numpy(),
        "first",
    )
