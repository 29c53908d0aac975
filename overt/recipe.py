"""The seam between engine and method: what a recipe provides, what a training step returns.

A recipe is a plain class, built from its typed settings. It knows nothing of the engine.
Nothing here imports torch at run time, so that a configuration is checked before torch loads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from overt.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from overt.distributed import World


class SampleSource(Protocol):
    """Training samples by index; all randomness of a sample comes from the generator given."""

    def __len__(self) -> int: ...

    def sample(self, index: int, rng: np.random.Generator) -> Any: ...


@dataclass(frozen=True)
class StepOutput:
    """What one micro-batch contributes to the loss of the global batch.

    `losses` are the weighted terms, each the sum over this micro-batch divided by a count of the
    whole global batch. So the shares of all micro-batches and processes add up to the loss of the
    one large batch, and so do their gradients. `metrics` add up in the same way and carry no
    gradient.
    """

    losses: dict[str, Tensor]
    metrics: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def total(self) -> Tensor:
        """The sum of the terms: what is differentiated."""
        terms = list(self.losses.values())
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def scaled(self, factor: float) -> StepOutput:
        """The same terms, all times `factor`."""
        return StepOutput(
            {name: term * factor for name, term in self.losses.items()},
            {name: value * factor for name, value in self.metrics.items()},
        )


class PointTracks(NamedTuple):
    """Where queried points are in each frame of a video; on the CPU."""

    tracks_xy: Tensor  # (T, N, 2) pixels of the video
    visible: Tensor  # (T, N) bool
    visibility: Tensor  # (T, N) probabilities
    confidence: Tensor  # (T, N) probabilities


class Recipe(Protocol):
    """What the engine asks of every method."""

    def build_model(self) -> nn.Module:
        """One root module with one forward: what DistributedDataParallel wraps."""

    def build_dataset(self) -> SampleSource:
        """The training samples; the engine makes sampler and loader."""

    def collate(self, samples: list[Any]) -> Any:
        """Samples to a batch: tensors in a frozen dataclass, dict, list or tuple, on the CPU."""

    def loss(
        self, model: nn.Module, batch: Any, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        """This micro-batch's share of the global batch's loss: sums here over counts there."""

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        """Scores on held-out data, the same on every process, each sample counted once."""


class RecipeExtras(Protocol):
    """What a recipe may have besides; the engine looks whether it is there."""

    # True: the loss is the same device work for all batches of one shape, so that a recording of
    # it can be replayed (`training.cuda_graph`). It looks at no value on the host, nor at `step`.
    # A string says by which setting that is not so.
    replayable: bool | str

    # True, or left out: samples are stacked to micro-batches of any size. A string says by which
    # setting they have shapes of their own, so that a micro-batch holds one.
    stackable: bool | str

    # Beginnings of the names of weights that only training uses: what is evaluated may lack them.
    unscored: tuple[str, ...]

    def replays_at(self, step: int) -> bool:
        """False for a step that does look at values on the host: it runs as without recording."""

    def on_device(self, batch: Any) -> Any:
        """The batch as the loss takes it, made of one that has just come to the device: work of the
        loader that the device does faster. It is not part of a recording."""

    def begin(self, total_steps: int, steps_per_epoch: int) -> None:
        """How long training will be, for schedules of the method's own; called once, early."""

    def counts(self, batch: Any) -> dict[str, Tensor]:
        """What the loss terms are divided by, for this micro-batch; the engine adds them up.

        Left out: the only count is `samples`, the number of samples.
        """

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Optimizer groups: `params` as (name, parameter) pairs, and `lr_scale`, `level`, ..."""

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The repeated blocks: compiled, checkpointed and sharded one by one."""

    def compile_units(self, model: nn.Module) -> list[nn.Module]:
        """What `training.compile=blocks` compiles as one, of one process's whole weights.

        Left out, and with `training.strategy=fsdp`: the blocks.
        """

    def shard_units(self, model: nn.Module) -> list[nn.Module]:
        """What `training.strategy=fsdp` gathers at a time, each used through its forward only.

        Left out: the blocks. What is in no unit is gathered once for the whole pass.
        """

    def example_batch(self, size: int) -> Any:
        """Make up a batch of `size` samples, for `overt plan` and benchmarks; read no file.

        It has the shapes and dtypes of training: what `collate` returns, on the CPU, before
        `on_device`. Where samples differ in size, it has the largest.
        """

    def largest_step(self) -> int:
        """A step that takes as much memory as any, for `overt plan`. Left out: all are alike."""

    def after_step(self, model: nn.Module, step: int, applied: Tensor) -> None:
        """After an update: move an EMA target, say. `applied` is 0 where the update was skipped."""

    def evaluate_rows(self, model: nn.Module, world: World) -> list[dict[str, Any]]:
        """A row per sample, its `name` and numbers: `evaluate` returns `summarize` of these."""

    def score_table(self, rows: list[dict[str, Any]], scores: dict[str, float]) -> str:
        """The rows and their means as `overt evaluate` prints them."""

    def track_points(self, model: nn.Module, video: Tensor, queries: Tensor) -> PointTracks:
        """Follow queries (N, 3) through a video (T, 3, H, W) uint8, for `overt track`."""

    def online_tracker(self, model: nn.Module, frame_size: tuple[int, int], points: int) -> Any:
        """What follows points frame by frame, for `overt track --online`."""

    def export_step(self, model: nn.Module) -> Any:
        """One frame or sample as a module with example inputs, for `overt ckpt export`."""

    def complete(self, model: nn.Module, skull: Any, where: str) -> Any:
        """Implants for a defective skull, for `overt complete`."""

    def visualize(self, model: nn.Module) -> dict[str, Tensor]:
        """Named pictures, (3, H, W) uint8, and videos, (T, 3, H, W), logged after each evaluation.

        Called on the main process only.
        """

    def custom_step(
        self, trainer: Any, micro_batches: list[Any], counts: dict[str, Tensor]
    ) -> tuple[list[StepOutput], Tensor, Tensor]:
        """Another update: combine `trainer.add_gradients(...)` and `trainer.update()` anew.

        Returns the outputs of the micro-batches, the gradient's norm, and 1, or 0 where the update
        was skipped.
        """


def _methods(protocol: type) -> tuple[str, ...]:
    return tuple(name for name in vars(protocol) if not name.startswith("_"))


REQUIRED, OPTIONAL = _methods(Recipe), _methods(RecipeExtras)


def check_recipe(recipe: object) -> None:
    """Refuse a recipe that lacks a required method, before anything is built."""
    missing = [name for name in REQUIRED if not callable(getattr(recipe, name, None))]
    if missing:
        raise ConfigError(
            f"the recipe {type(recipe).__module__}.{type(recipe).__qualname__} has no "
            f"{', '.join(missing)}; a recipe needs {', '.join(REQUIRED)} and may have "
            f"{', '.join(OPTIONAL)} (docs/add_a_recipe.md)"
        )
