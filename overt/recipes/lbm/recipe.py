"""LBM as a recipe: what the engine needs to train and score it, and nothing else."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from overt.data.tracking.clips import (
    TrackBatch,
    TrackSample,
    make_missing_sequences,
    redrawn_count,
    redrawn_metric,
    rendered,
    stack_samples,
)
from overt.data.tracking.procedural import Seeds, renderer_of
from overt.data.tracking.textures import CALIBRATION, read_photographs
from overt.distributed import World
from overt.errors import ConfigError
from overt.evaluation import NamedRow, summarize
from overt.geometry.sample import resize_bilinear
from overt.metrics.flow_baselines import baseline_rows
from overt.metrics.scored_clips import further_recipes, score_clips
from overt.metrics.tracking import score_table
from overt.recipe import Recipe, SampleSource, StepOutput
from overt.recipes.lbm import loss as tracking_loss
from overt.recipes.lbm.clip import track_clip
from overt.recipes.lbm.config import Settings
from overt.recipes.lbm.data import POSITIONS, KubricClips, evaluation_clips, example_sample
from overt.recipes.lbm.export import make_step, with_weights_of
from overt.recipes.lbm.loss import Targets, true_cells
from overt.recipes.lbm.model import LBM
from overt.recipes.lbm.online import OnlineTracker
from overt.recipes.lbm.resnet_weights import load_resnet
from overt.tasks import ExportedStep, PointTracks
from overt.viz.tracks import draw_beside_truth, film_beside_truth

# Number of distinct samples of an example batch; larger batches repeat them.
EXAMPLES = 2

# model.backbone_weights: none, and it is meant so (null in runs from before there was a word for
# it); and the value of the official recipe, which training refuses.
RANDOM, TO_BE_GIVEN = "random", "to_be_given"

# Points per pass: tracking 300,000 points needs no more memory than this many.
POINTS_PER_CHUNK = 3000

# At most this many squares of photographs set the ranges of an 8-bit export.
CALIBRATION_PICTURES = 64


def _later(
    report: Callable[[float], None] | None, done: int, passes: int
) -> Callable[[float], None] | None:
    """Report the progress of one pass as a fraction of all passes."""
    return None if report is None else lambda part: report((done + part) / passes)


# GiB per frame of 384 x 512 with 256 points for each value of `model.recompute`, fastest first, as
# predicted by `overt plan`; maps as measured for the compiled step.
FRAME_GIB = {"none": 0.28, "maps": 0.12, "frames": 0.045}
STATIC_GIB = 0.6  # weights, gradients, the optimizer's state and what frames share
LEAST = "frames"
ROOM = 0.9  # of the memory; the rest is the allocator's


class LBMRecipe(Recipe):
    """An online point tracker, trained on clips of 24 frames."""

    replayable = True
    tracks_backward: ClassVar[bool] = False  # as a teacher: positions before the query mean nothing

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        chosen = settings.model.recompute
        self.recompute = LEAST if chosen == "auto" else chosen
        data = settings.data
        self.renderer = renderer_of(data, data.frames, data.points, POSITIONS)

    def fit_memory(self, samples: int, gib: float) -> str | None:
        """Choose `model.recompute`: the fastest value that fits, if it is set to auto."""
        settings = self.settings
        if settings.model.recompute != "auto":
            return None
        height, width = settings.model.input_size
        wide = max(height * width / (384 * 512), settings.data.points / 256)
        frames = samples * settings.data.frames * wide
        needed = {name: STATIC_GIB + frames * each for name, each in FRAME_GIB.items()}
        fitting = [name for name, size in needed.items() if size <= ROOM * gib]
        self.recompute = fitting[0] if fitting else LEAST
        return f"recompute={self.recompute} (some {needed[self.recompute]:.0f} GiB of {gib:.0f})"

    def build_model(self) -> LBM:
        model = self._empty_model(self.settings.model.input_size)
        weights = self.settings.model.backbone_weights
        if weights not in (None, RANDOM, TO_BE_GIVEN):
            load_resnet(model.backbone, weights)
        return model

    def build_dataset(self) -> SampleSource:
        if self.settings.model.backbone_weights == TO_BE_GIVEN:
            raise ConfigError(
                f"model.backbone_weights={TO_BE_GIVEN}: the official runs start from an ImageNet "
                "ResNet-18, and a random encoder gives far lower scores. Give torchvision's file, "
                "model.backbone_weights=resnet18-f37072fd.pth, or set "
                "model.backbone_weights=random, also if checkpoint.init_from provides all weights"
            )
        if self.renderer is not None:
            return self.renderer.source()
        make_missing_sequences(self.settings.data)
        return KubricClips(self.settings.data)

    def collate(self, samples: list[Any]) -> TrackBatch | Seeds:
        return stack_samples(samples) if self.renderer is None else self.renderer.collate(samples)

    def example_batch(self, size: int) -> TrackBatch | Seeds:
        """Return clips of noise with the tracks of moving shapes, or clips to be rendered."""
        if self.renderer is not None:
            return self.renderer.example(size)
        samples = [
            example_sample(self.settings.data, index) for index in range(min(size, EXAMPLES))
        ]
        return self.collate([samples[index % EXAMPLES] for index in range(size)])

    def on_device(self, batch: TrackBatch | Seeds) -> TrackBatch:
        if isinstance(batch, Seeds):
            assert self.renderer is not None
            return self.renderer.render(batch)
        return rendered(batch)

    def blocks(self, model: LBM) -> list[nn.Module]:
        # Runs in every frame, as one unit. The encoder is excluded: its batch statistics must not
        # be updated twice, and model.recompute takes care of it.
        return [model.transformer]

    def shard_units(self, model: LBM) -> list[nn.Module]:
        # Not the transformer: it runs in every frame, and its maps are made outside of it.
        return [model.backbone]

    def targets(self, batch: TrackBatch) -> Targets:
        """Return the ground truth in pixels of the model, and where it is supervised."""
        frames = torch.arange(batch.tracks.shape[1], device=batch.tracks.device)[:, None]
        valid = batch.valid if batch.valid.dim() == 3 else batch.valid.unsqueeze(1)
        supervised = valid.expand_as(batch.visibility)
        if self.settings.loss.after_query:
            supervised = supervised & (frames > batch.queries[:, None, :, 0].floor())
        height, width = batch.video.shape[-2:]
        model_height, model_width = self.settings.model.input_size
        x, y = batch.tracks.unbind(-1)
        tracks = torch.stack([x / width * model_width, y / height * model_height], dim=-1)
        return Targets(tracks, batch.visibility, supervised)

    def counts(self, batch: TrackBatch | Seeds) -> dict[str, Tensor]:
        if isinstance(batch, Seeds):  # `loss.clips_per_mean` needs no counts of points
            assert self.renderer is not None
            return self.renderer.counts(batch)
        return tracking_loss.counts(self.targets(batch)) | redrawn_count(batch)

    def loss(
        self, model: nn.Module, batch: TrackBatch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        targets = self.targets(batch)
        height, width = self.settings.model.input_size
        prediction = model(
            batch.video, batch.queries, true_cells(targets.tracks_xy, (height, width))
        )
        # Losses are float32, whatever the precision of the model.
        with torch.autocast(batch.video.device.type, enabled=False):
            if self.settings.loss.clips_per_mean is None:
                terms = tracking_loss.losses(prediction, targets, counts, self.settings.loss)
            else:
                terms = tracking_loss.pooled_losses(
                    prediction, targets, counts["clips"], self.settings.loss
                )
            distance = (prediction.points_xy.detach() - targets.tracks_xy).norm(dim=-1)
            pixels, located = distance * targets.located, targets.located
            if "located" in counts:
                error = pixels.sum() / counts["located"].clamp(min=1)
            else:
                clip_error = pixels.sum((1, 2)) / located.sum((1, 2)).clamp(min=1)
                error = clip_error.sum() / counts["clips"]
        return StepOutput(terms, {"visible_error_px": error} | redrawn_metric(batch, counts))

    def check_evaluation_data(self) -> None:
        evaluation_clips(self.settings)
        for recipe in further_recipes(self).values():
            recipe.check_evaluation_data()

    def evaluation_sets(self) -> dict[str, Any]:
        """Return the scores of every set in `evaluation.also`."""
        return {name: recipe.evaluate for name, recipe in further_recipes(self).items()}

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        """Return TAP-Vid scores on `evaluation.dataset`, next to those of a static baseline."""
        return summarize(self.evaluate_rows(model, world))

    def evaluate_rows(self, model: nn.Module, world: World) -> list[NamedRow]:
        """Return the scores of each sequence or video."""
        return score_clips(evaluation_clips(self.settings), partial(self.track, model), world)

    def baseline_rows(self, world: World) -> dict[str, list[NamedRow]]:
        """Return the scores of OpenCV's Lucas-Kanade and DIS flow."""
        return baseline_rows(self.settings.data, self.settings.evaluation, world)

    def score_table(self, rows: list[NamedRow], scores: dict[str, float]) -> str:
        return score_table(rows, scores)

    def visualize(self, model: nn.Module) -> dict[str, Tensor]:
        """Draw predicted and true tracks of the first evaluation clip."""
        clip = evaluation_clips(self.settings).sample(0)
        if len(clip.queries) == 0:
            return {}
        tracks, visible = self.track(model, clip)
        truth = (clip.tracks, clip.visibility)
        return {
            "tracks": draw_beside_truth(clip.video, tracks, visible, *truth),
            "tracks_video": film_beside_truth(clip.video, tracks, visible, *truth),
        }

    def track(self, model: nn.Module, clip: TrackSample) -> tuple[Tensor, Tensor]:
        """Return positions (T, N, 2) and visibility (T, N) of a clip's queries, on the CPU."""
        tracks = self.track_points(model, clip.video, clip.queries)
        return tracks.tracks_xy, tracks.visible

    def track_points(
        self,
        model: nn.Module,
        video: Tensor,
        queries: Tensor,
        report: Callable[[float], None] | None = None,
    ) -> PointTracks:
        """Track points through a video from their query on, frame by frame, in float32.

        Points are independent, so any number of them is tracked in chunks.
        """
        assert isinstance(model, LBM)
        settings = self.settings.evaluation
        chunks = torch.split(queries, POINTS_PER_CHUNK)
        results = []
        with torch.autocast(next(model.parameters()).device.type, enabled=False):
            for index, chunk in enumerate(chunks):
                reporting = _later(report, index, len(chunks))
                limits = (settings.memory_size, settings.visible_threshold)
                results.append(track_clip(model, video, chunk, *limits, reporting))
        points_xy, visible, visibility, rho = (
            torch.cat(parts, dim=1) for parts in zip(*results, strict=True)
        )
        return PointTracks(points_xy, visible, visibility, 1 - rho)

    def online_tracker(
        self, model: nn.Module, frame_size: tuple[int, int], points: int, compile: bool = False
    ) -> OnlineTracker:
        """Return a tracker for frames that arrive one by one, for `overt track --online`.

        The command does not compile; a loop of your own over many frames may.
        """
        assert isinstance(model, LBM)
        settings = self.settings.evaluation
        on_cuda = next(model.parameters()).is_cuda
        return OnlineTracker(
            model,
            frame_size,
            points,
            settings.memory_size,
            settings.visible_threshold,
            torch.float16 if on_cuda else torch.float32,
            compile=compile,
        )

    def export_step(self, model: nn.Module) -> ExportedStep:
        """Return the computation of one frame with its state as inputs and outputs, for ONNX."""
        assert isinstance(model, LBM)
        settings = self.settings.evaluation
        if settings.export_input_size is not None:
            model = with_weights_of(model, self._empty_model(settings.export_input_size))
        return make_step(
            model,
            settings.memory_size,
            settings.visible_threshold,
            cpu_points=settings.export_cpu_points,
            pictures=self._calibration_pictures(model.input_size),
        )

    def _calibration_pictures(self, size: tuple[int, int]) -> Tensor | None:
        """Return squares of the photographs in `evaluation.export_int8`, (F, 3, H, W)."""
        folder = self.settings.evaluation.export_int8
        if folder is None:
            return None
        squares = read_photographs(Path(folder), min(size), CALIBRATION)
        some = np.stack(squares[:: math.ceil(len(squares) / CALIBRATION_PICTURES)])
        return resize_bilinear(torch.from_numpy(some).permute(0, 3, 1, 2).float(), size)

    def _empty_model(self, input_size: Sequence[int]) -> LBM:
        sizes = dataclasses.asdict(self.settings.model) | {"recompute": self.recompute}
        del sizes["backbone_weights"]
        height, width = input_size
        return LBM(**sizes | {"input_size": (height, width)})
