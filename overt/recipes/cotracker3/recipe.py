"""CoTracker3 as a recipe: what the engine needs to train and score it, and nothing else."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from overt.data.tracking.clips import (
    TrackBatch,
    TrackSample,
    make_missing_sequences,
    redrawn_count,
    redrawn_metric,
    rendered,
)
from overt.data.tracking.procedural import Seeds, renderer_of
from overt.data.tracking.settings import HELD_OUT, TAPVID
from overt.data.tracking.unlabeled import UnlabeledBatch, stack_unlabeled
from overt.distributed import World
from overt.errors import ConfigError
from overt.evaluation import NamedRow, summarize
from overt.metrics.flow_baselines import baseline_rows
from overt.metrics.scored_clips import further_recipes, score_clips
from overt.metrics.tracking import score_table
from overt.recipe import Recipe, SampleSource, StepOutput
from overt.recipes.cotracker3 import loss as tracking_loss
from overt.recipes.cotracker3.config import Settings
from overt.recipes.cotracker3.data import (
    POSITIONS,
    collate,
    evaluation_clips,
    example_sample,
    training_clips,
    unlabeled_clips,
    unlabeled_example,
)
from overt.recipes.cotracker3.live import LiveTracker
from overt.recipes.cotracker3.loss import Targets
from overt.recipes.cotracker3.model import CoTracker3, CoTracker3Offline
from overt.recipes.cotracker3.online import CoTracker3Online
from overt.recipes.cotracker3.predictor import Prediction, Predictor
from overt.recipes.cotracker3.teachers import refuse_untrained, teachers_of
from overt.recipes.cotracker3.windows import since_query, sliding_windows
from overt.tasks import PointTracks
from overt.viz.tracks import draw_beside_truth, film_beside_truth

# Side of the grid of support points for `overt track`, as in the published demo.
TRACKING_GRID = 6

# Points per pass: tracking 300,000 points needs no more memory than this many.
POINTS_PER_CHUNK = 3000
HUB_VISIBLE = 0.9  # the visibility from which the published offline predictor draws a point

# Number of distinct samples of an example batch; larger batches repeat them.
EXAMPLES = 2


# GiB per frame of 384 x 512 with 512 points for each value of `model.recompute`, fastest first, as
# predicted by `overt plan` without compilation, which stores less.
FRAME_GIB: dict[tuple[str, ...], float] = {
    (): 0.39,
    ("hidden", "normed", "correlation"): 0.23,
    ("correlation", "features", "update"): 0.1,
}
STATIC_GIB = 0.6  # weights, gradients and the optimizer's state
ROOM = 0.9  # of the memory; the rest is the allocator's


class _CoTracker3Recipe(Recipe):
    """Everything except the choice of model and the windows it is trained in."""

    model_class: ClassVar[type[CoTracker3]]
    replayable = True
    tracks_backward: ClassVar[bool] = True  # positions before the query are meant
    teacher_support: ClassVar[str] = "none"  # as a teacher: see overt/data/tracking/settings.py

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        chosen = settings.model.recompute
        self.recompute: Sequence[str] = () if chosen == ["auto"] else chosen
        data = settings.data
        self.renderer = renderer_of(data, data.sequence_len, data.traj_per_sample, POSITIONS)
        self.teachers = teachers_of(data.unlabeled)
        self.stackable: bool | str = True
        if data.random_number_traj:
            self.stackable = (
                "with data.random_number_traj=true every clip has different tracks and frames "
                "number; set data.random_number_traj=false"
            )
        shortest, longest = data.random_sequence_len, data.sequence_len
        if shortest is not None and longest - shortest > 1:  # the longest is never drawn
            self.stackable = (
                f"with data.random_sequence_len={shortest} every clip has another length; set "
                "data.random_sequence_len=null"
            )

    @abstractmethod
    def windows(self, frames: int) -> list[slice]:
        """Return the windows in which the model sees a clip."""

    @abstractmethod
    def supervised(self, batch: TrackBatch) -> Tensor:
        """Return in which frames positions are supervised, (B, T, N) bool."""

    def targets(self, batch: TrackBatch) -> list[Targets]:
        """The truth in each window."""
        visible, valid = batch.visibility.float(), self.supervised(batch).float()
        return [
            Targets(batch.tracks[:, span], visible[:, span], valid[:, span])
            for span in self.windows(batch.tracks.shape[1])
        ]

    def fit_memory(self, samples: int, gib: float) -> str | None:
        """Choose `model.recompute`: the fastest value that fits, if it is set to auto."""
        settings = self.settings
        if settings.model.recompute != ["auto"]:
            return None
        height, width = settings.data.crop_size
        wide = max(height * width / (384 * 512), settings.data.traj_per_sample / 512)
        frames = samples * settings.data.sequence_len * wide
        needed = [STATIC_GIB + frames * each for each in FRAME_GIB.values()]
        index = next((n for n, size in enumerate(needed) if size <= ROOM * gib), -1)
        self.recompute = list(FRAME_GIB)[index]
        names = ",".join(self.recompute)
        return f"recompute=[{names}] (some {needed[index]:.0f} GiB of {gib:.0f})"

    def build_model(self) -> CoTracker3:
        sizes = dataclasses.asdict(self.settings.model) | {"recompute": self.recompute}
        del sizes["train_iters"], sizes["eval_iters"], sizes["bf16_inputs"]
        frozen = sizes.pop("freeze_visibility")
        model = self.model_class(**sizes)
        if frozen:
            assert model.updateformer.vis_conf_head is not None, "the settings have refused that"
            model.updateformer.vis_conf_head.requires_grad_(False)
        return model

    def build_dataset(self) -> SampleSource:
        if self.renderer is not None:
            return self.renderer.source()
        make_missing_sequences(self.settings.data)
        if self.settings.data.unlabeled is not None:
            refuse_untrained(self.settings.data.unlabeled)
            return unlabeled_clips(self.settings.data)
        return training_clips(self.settings.data)

    def collate(self, samples: list[Any]) -> TrackBatch | Seeds | UnlabeledBatch:
        if self.renderer is not None:
            return self.renderer.collate(samples)
        if self.settings.data.unlabeled is not None:
            return stack_unlabeled(samples)
        return collate(samples)

    def example_batch(self, size: int) -> TrackBatch | Seeds | UnlabeledBatch:
        """Return clips of noise with the largest length that training samples."""
        if self.renderer is not None:
            return self.renderer.example(size)
        make = example_sample if self.teachers is None else unlabeled_example
        samples = [make(self.settings.data, index) for index in range(min(size, EXAMPLES))]
        return self.collate([samples[index % EXAMPLES] for index in range(size)])

    def on_device(self, batch: TrackBatch | Seeds | UnlabeledBatch) -> TrackBatch:
        if isinstance(batch, Seeds):
            assert self.renderer is not None
            return self.renderer.render(batch)
        if isinstance(batch, UnlabeledBatch):
            assert self.teachers is not None
            return self.teachers.label(batch)
        return rendered(batch)

    def blocks(self, model: CoTracker3) -> list[nn.Module]:
        small = [model.fnet, model.table, model.corr_mlp, model.motion, model.token_parts]
        return [*small, model.updateformer]

    def compile_units(self, model: CoTracker3) -> list[nn.Module]:
        units = [model.fnet, model.table, model.corr_mlp, model.token_parts]
        units += model.updateformer.layers  # all are one and the same program
        if model.training:
            return units
        # These take seconds to compile and hardly speed up a training step, but pay off when
        # scoring a whole data set.
        return [*units, model.motion, model.updateformer.entry, model.updateformer.exit]

    def counts(self, batch: TrackBatch | Seeds | UnlabeledBatch) -> dict[str, Tensor]:
        # Clips that are rendered or labeled later use the loss of `per_clip`.
        if isinstance(batch, Seeds):
            assert self.renderer is not None
            return self.renderer.counts(batch)
        if isinstance(batch, UnlabeledBatch):
            return {"clips": torch.tensor(float(len(batch.video)))}
        windows = tracking_loss.counts(self.targets(batch))
        # Windows overlap, but the logged error counts every frame once.
        once = {"visible_once": (self.supervised(batch) & batch.visibility).sum()}
        return windows | once | redrawn_count(batch)

    def loss(
        self, model: nn.Module, batch: TrackBatch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        video, queries = batch.video, batch.queries
        if self.settings.model.bf16_inputs:
            video, queries = video.bfloat16(), queries.bfloat16().float()
        tracks = model(video, queries, self.settings.model.train_iters, is_train=True)
        # Losses are float32, whatever the precision of the model.
        with torch.autocast(video.device.type, enabled=False):
            terms = tracking_loss.losses(
                tracks.train_data.windows, self.targets(batch), counts, self.settings.loss
            )
            is_counted = self.supervised(batch) & batch.visibility
            pixels = (tracks.tracks_xy.detach() - batch.tracks).norm(dim=-1) * is_counted
            if "visible_once" in counts:
                error = pixels.sum() / counts["visible_once"].clamp(min=1)
            else:
                clip_error = pixels.sum((1, 2)) / is_counted.sum((1, 2)).clamp(min=1)
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
        settings = self.settings.evaluation
        video, queries = clip.video[None], clip.queries[None]
        if settings.dataset == HELD_OUT:  # at the size of training, without support points
            device = next(model.parameters()).device
            tracks = model(video.to(device), queries.to(device), self.settings.model.eval_iters)
            prediction = Prediction(*tracks[:3])
        else:
            supported = settings.dataset in TAPVID  # other sets are scored without support points
            predict = self.predictor(
                model,
                grid_size=settings.grid_size if supported else 0,
                single_point=settings.single_point and supported,
                random_points=settings.random_points if supported else 0,
                backward_tracking=settings.query_mode == "strided",
            )
            prediction = predict(video, queries)
        visible = prediction.visible(settings.visible_threshold)
        return prediction.tracks_xy[0].cpu(), visible[0].cpu()

    def track_points(
        self,
        model: nn.Module,
        video: Tensor,
        queries: Tensor,
        as_hub: bool = False,
        report: Callable[[float], None] | None = None,
    ) -> PointTracks:
        """Track any points of any video in both directions of time.

        `as_hub`: before their query, points come from the reversed video, and visibility follows
        the rule of the published predictor. `report` gets the completed fraction.
        """
        if as_hub and isinstance(model, CoTracker3Online):
            raise ConfigError(
                "as_hub (--as-hub) tracks as the published offline predictor does, and this is the "
                "online model; drop it, or use an offline one"
            )
        later = bool((queries[:, 0] > 0).any())
        predict = self.predictor(
            model,
            grid_size=TRACKING_GRID,
            backward_tracking=later,
            reversed_before_query=later and as_hub,
            points_per_chunk=POINTS_PER_CHUNK,
            pin_queries=True,
        )
        prediction = predict(video[None], queries[None], report)
        threshold = self.settings.evaluation.visible_threshold
        if as_hub:
            visible = prediction.visible(HUB_VISIBLE, with_confidence=False)
        else:
            visible = prediction.visible(threshold)
        parts = (prediction.tracks_xy, visible, prediction.visibility, prediction.confidence)
        return PointTracks(*(part[0].cpu() for part in parts))

    def predictor(self, model: nn.Module, **options: Any) -> Predictor:
        """Return the model with the inference settings of the configuration and `options`."""
        settings = self.settings.evaluation
        (height, width), fine = settings.resolution, settings.fine_resolution
        assert isinstance(model, CoTracker3Offline | CoTracker3Online)
        return Predictor(
            model,
            resolution=(height, width),
            iters=self.settings.model.eval_iters,
            fine_resolution=None if fine is None else (fine[0], fine[1]),
            fine_iters=settings.fine_iters,
            local_grid_size=settings.local_grid_size,
            queries_per_batch=settings.queries_per_batch,
            **{"random_points": settings.random_points} | options,
        )


class CoTracker3OfflineRecipe(_CoTracker3Recipe):
    """The offline tracker, which sees a whole clip at once, before and after the query."""

    model_class = CoTracker3Offline
    teacher_support = "random"

    def windows(self, frames: int) -> list[slice]:
        return [slice(0, frames)]

    def supervised(self, batch: TrackBatch) -> Tensor:
        return batch.valid


class CoTracker3OnlineRecipe(_CoTracker3Recipe):
    """The online tracker, which sees one window at a time and tracks points from their query on."""

    model_class = CoTracker3Online
    teacher_support = "grid"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        if settings.data.random_sequence_len is not None:
            raise ConfigError(
                f"data.random_sequence_len={settings.data.random_sequence_len}, but the online "
                "model is trained on clips with equally many windows, whose losses are averaged "
                "window by window; set data.random_sequence_len=null"
            )
        if settings.evaluation.fine_resolution is not None:
            raise ConfigError(
                f"evaluation.fine_resolution={settings.evaluation.fine_resolution}, but the online "
                "model sees a video once; set evaluation.fine_resolution=null"
            )

    def windows(self, frames: int) -> list[slice]:
        return sliding_windows(frames, self.settings.model.window_len)

    def supervised(self, batch: TrackBatch) -> Tensor:
        return batch.valid & since_query(batch.queries[..., 0], batch.valid.shape[1])

    def online_tracker(
        self, model: nn.Module, frame_size: tuple[int, int], points: int
    ) -> LiveTracker:
        """Return a tracker for frames that arrive one by one, for `overt track --online`."""
        assert isinstance(model, CoTracker3Online)
        settings = self.settings.evaluation
        height, width = settings.resolution
        iters, threshold = self.settings.model.eval_iters, settings.visible_threshold
        return LiveTracker(model, frame_size, points, (height, width), iters, threshold)
