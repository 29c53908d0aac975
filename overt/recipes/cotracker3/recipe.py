"""CoTracker3 as a recipe: what the engine needs to train and score it, and nothing else."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from overt.data.synthetic_kubric import write_sequences
from overt.distributed import World, barrier, is_main_process
from overt.evaluation import Row, mean_of_rows, score_each
from overt.metrics.tracking import tapvid_metrics
from overt.recipe import StepOutput
from overt.recipes.cotracker3 import loss as tracking_loss
from overt.recipes.cotracker3.blocks import CrossBlock, SelfBlock
from overt.recipes.cotracker3.config import DataSettings, Settings
from overt.recipes.cotracker3.data import (
    HeldOutClips,
    KubricClips,
    TrackBatch,
    TrackSample,
    collate,
)
from overt.recipes.cotracker3.model import CoTracker3Offline
from overt.viz.tracks import draw_tracks

POINTS_DRAWN = 24


class CoTracker3:
    """The offline tracker: whole clips, random query frames."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def build_model(self) -> CoTracker3Offline:
        sizes = dataclasses.asdict(self.settings.model)
        del sizes["train_iters"], sizes["eval_iters"]
        return CoTracker3Offline(**sizes)

    def build_dataset(self) -> KubricClips:
        make_missing_data(self.settings.data)
        return KubricClips(self.settings.data)

    def collate(self, samples: list[TrackSample]) -> TrackBatch:
        return collate(samples)

    def blocks(self, model: CoTracker3Offline) -> list[nn.Module]:
        return [part for part in model.modules() if isinstance(part, SelfBlock | CrossBlock)]

    def counts(self, batch: TrackBatch) -> dict[str, Tensor]:
        return tracking_loss.counts([whole_clip(batch)])

    def loss(
        self, model: nn.Module, batch: TrackBatch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        iterations = self.settings.model.train_iters
        tracks = model(batch.video, batch.queries, iterations, is_train=True)
        # The losses are float32 whatever the model computes in.
        with torch.autocast(batch.video.device.type, enabled=False):
            terms = tracking_loss.losses(
                tracks.train_data.windows, [whole_clip(batch)], counts, self.settings.loss
            )
            target = whole_clip(batch)
            seen = target.valid * target.visible
            pixels = (tracks.tracks_xy.detach() - target.tracks_xy).norm(dim=-1)
            error = (pixels * seen).sum() / counts["visible"][0].clamp(min=1)
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


def make_missing_data(settings: DataSettings) -> None:
    """Write the synthetic sequences that `data.synthetic` describes, unless they are there."""
    if settings.synthetic is not None and is_main_process():
        write_sequences(settings.root, **dataclasses.asdict(settings.synthetic))
    barrier()


def whole_clip(batch: TrackBatch) -> tracking_loss.Targets:
    """The truth of the one window that the offline model has."""
    return tracking_loss.Targets(batch.tracks, batch.visibility.float(), batch.valid.float())


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
