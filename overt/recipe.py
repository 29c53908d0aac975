"""The seam between engine and method: what a recipe provides, what a training step returns.

A recipe derives from `Recipe`, is built from its typed settings, and knows nothing of the engine.
Nothing here imports torch at run time, so that a configuration is checked before torch loads.
"""

from __future__ import annotations

import difflib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from overt.data.source import EpochOrder as EpochOrder
from overt.data.source import OrderedSource as OrderedSource
from overt.data.source import SampleSource as SampleSource
from overt.data.source import SampleStream as SampleStream
from overt.data.source import SplitStream as SplitStream
from overt.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from overt.distributed import World

    Evaluation = Callable[[Any, World], dict[str, float]]  # of a model, on all ranks


@dataclass(frozen=True)
class StepOutput:
    """What one micro-batch contributes to the loss of the global batch.

    `losses` are the weighted terms, each the sum over this micro-batch divided by a count of the
    whole global batch. So the terms of all micro-batches and ranks add up to the loss of the one
    large batch, and so do their gradients. `metrics` add up in the same way and carry no gradient.
    Every micro-batch returns the same names, with 0 where nothing counts.
    `carry` holds tensors for `after_step`, (samples, ...) each: the only way to hand anything on.

    Examples:
        >>> output = overt.StepOutput(losses={"l1": torch.tensor(0.5), "l2": torch.tensor(0.25)})
        >>> float(output.total)
        0.75
    """

    losses: dict[str, Tensor]
    metrics: dict[str, Tensor] = field(default_factory=dict)
    carry: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in ("losses", "metrics", "carry"):
            if not isinstance(value := getattr(self, part), dict):
                raise ConfigError(
                    f"StepOutput holds {part}, a {type(value).__name__}; expected a dict of "
                    'tensors by name, such as {"l1": errors.sum() / counts["samples"]}'
                )
        if not self.losses:
            raise ConfigError("StepOutput holds no loss; give it at least one, by name")
        for name, value in (*self.losses.items(), *self.metrics.items()):
            # Asked of the value itself: a recipe's class is checked before torch is imported.
            if getattr(value, "ndim", None) != 0 or not hasattr(value, "detach"):
                shape = getattr(value, "shape", None)
                of = "" if shape is None else f" of shape {tuple(shape)}"
                raise ConfigError(
                    f"StepOutput holds {name}, a {type(value).__name__}{of}; expected a tensor "
                    'without dimensions, such as errors.sum() / counts["samples"]'
                )

    @cached_property
    def total(self) -> Tensor:
        """The sum of the terms: what is differentiated."""
        terms = list(self.losses.values())
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def scaled(self, factor: float) -> StepOutput:
        """Return the same terms, all times `factor`."""
        return StepOutput(
            {name: term * factor for name, term in self.losses.items()},
            {name: value * factor for name, value in self.metrics.items()},
            self.carry,
        )


class Recipe(ABC):
    """A method. Five hooks are required; the others do what their docstring says, or nothing.

    Derive from it directly. Types of models and batches are yours to narrow.
    """

    # True: the loss is the same device work for all batches of one shape, so that a recording of
    # it can be replayed (`training.cuda_graph`). It looks at no value on the host, nor at `step`.
    # A string says by which setting that is not so.
    replayable: bool | str = False

    # False, or a string that says why: `training.compile=auto` leaves the blocks as they are.
    compile_pays: bool | str = True

    # True: `on_device` reads nothing that a step changes: it may run beside the step before it.
    prepares_beside_step: bool = False

    # True: where the loss can be replayed, so can `on_device` beside it. It, too, is the same
    # device work for all batches of one shape and looks at no value on the host.
    prepares_replayably: bool = False

    # True: samples are stacked to micro-batches of any size. A string says by which setting they
    # have different shapes, so that a micro-batch holds one.
    stackable: bool | str = True

    # True: nothing on the device is float64, which Apple's GPUs lack (`training.device=mps`).
    runs_on_mps: bool = False

    # Prefixes of training-only parameters; an evaluation checkpoint may omit them.
    unscored: tuple[str, ...] = ()

    # True: `after_step` gets the tensors of all ranks, in the order of the global batch.
    gathers_carry: bool = False

    # --- required ---------------------------------------------------------------------------

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return one root module with one forward: what DistributedDataParallel wraps."""

    @abstractmethod
    def build_dataset(self) -> SampleSource:
        """Return the training samples; the engine makes sampler and loader.

        A source may give its own order, or be a stream: see overt/data/source.py.
        """

    @abstractmethod
    def collate(self, samples: Any) -> Any:
        """Return a batch of samples: tensors in a frozen dataclass, dict or tuple, on the CPU."""

    @abstractmethod
    def loss(self, model: Any, batch: Any, counts: dict[str, Tensor], step: int) -> StepOutput:
        """Return this micro-batch's part of the global batch's loss: sums here over counts there.

        It is pure: it changes neither the recipe nor the model, since the engine calls it again to
        rebuild DDP's buckets, to count FLOPs and to find NaN. What later code needs goes into
        `StepOutput.carry`.
        """

    @abstractmethod
    def evaluate(self, model: Any, world: World) -> dict[str, float]:
        """Return scores on held-out data, the same on every rank, each sample counted once."""

    # --- loader processes -------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Return what a loader process gets of the recipe: modules and device tensors are None.

        A process that receives a tensor of a GPU starts CUDA for it, which takes seconds and memory
        of the GPU. Objects that keep such tensors have to define `__getstate__` as well.
        """
        from overt.nested import stays_on_device

        return {
            name: None if stays_on_device(value) else value for name, value in vars(self).items()
        }

    # --- data and model ---------------------------------------------------------------------

    def begin(self, total_steps: int, steps_per_epoch: int) -> None:
        """Learn how long training will be, for schedules of the method's own; called once."""
        return

    def check_evaluation_data(self) -> None:
        """Open what evaluations will read, and refuse what is missing, before anything is built.

        Every rank calls it, at the start of a run: a wrong path is noticed now, and not when the
        first evaluation is due.
        """
        return

    def counts(self, batch: Any) -> dict[str, Tensor]:
        """Return what the loss terms are divided by, for this micro-batch; the engine adds them up.

        `samples`, the number of samples, is always there.
        """
        return {}

    def on_device(self, batch: Any) -> Any:
        """Return the batch as the loss takes it, made of one that has just come to the device.

        Work of the loader that the device does faster. It is not part of a CUDA graph.
        """
        return batch

    def example_batch(self, size: int) -> Any:
        """Return a batch of `size` samples as `collate` does, made without any file.

        For `overt plan` and benchmarks: shapes and types of training at its largest.
        """
        raise ConfigError(
            f"{type(self).__qualname__} has no example_batch(self, size): overt plan and the "
            "benchmarks need a batch that is made without any file (see `overt docs add_a_recipe`)"
        )

    def fit_memory(self, samples: int, gib: float) -> str | None:
        """Choose what is computed again so that a micro-batch of `samples` fits into `gib` GiB.

        Called on CUDA before the model is built. Return what was chosen, for the log, or None where
        the settings leave nothing to choose.
        """
        return None

    def parameter_groups(self, model: Any) -> list[dict[str, Any]] | None:
        """Return optimizer groups: `params` as (name, parameter) pairs, `lr_scale`, `level`, ...

        None: one group of all parameters that need a gradient.
        """
        return None

    def blocks(self, model: Any) -> list[nn.Module]:
        """Return the repeated blocks: compiled, checkpointed and sharded one by one."""
        return []

    def compile_units(self, model: Any) -> list[nn.Module]:
        """Return what `training.compile=blocks` compiles as one; with FSDP, the blocks."""
        return self.blocks(model)

    def shard_units(self, model: Any) -> list[nn.Module]:
        """Return what `training.strategy=fsdp` gathers at a time, each used through its forward.

        What is in no unit is gathered once for the whole pass.
        """
        return self.blocks(model)

    # --- the step ---------------------------------------------------------------------------

    def replays_at(self, step: int) -> bool | int:
        """Return False for a step that looks at values on the host: it runs without recording.

        Where steps differ, return a number: steps of one number do the same work.
        """
        return True

    def largest_step(self) -> int:
        """Return a step that takes as much memory as any, for `overt plan`."""
        return 1

    def custom_step(
        self, trainer: Any, micro_batches: list[Any], counts: dict[str, Tensor]
    ) -> tuple[list[StepOutput], Tensor, Tensor] | None:
        """Run another update made of `trainer.add_gradients(...)` and `trainer.update()`.

        Return the outputs of the micro-batches, the gradient norm, and 1, or 0 where the update
        was skipped. None: the engine runs its own.
        """
        return None

    def after_step(self, model: Any, step: int, applied: Tensor, carry: dict[str, Tensor]) -> None:
        """Act after an update: move an EMA target, fill a queue.

        `applied` is 0 where the update was skipped. `carry` holds the tensors of
        `StepOutput.carry`, detached, micro-batch by micro-batch; see `gathers_carry`. The model is
        bare: neither DDP nor compiled wrappers are around it.
        """
        return

    # --- between steps ----------------------------------------------------------------------

    def evaluation_sets(self) -> dict[str, Evaluation]:
        """Return further evaluations by name, each a function like `evaluate`.

        `training.evaluate_sets` gives each its own cadence. Scores are called NAME/SCORE, and any
        may be `checkpoint.metric_name`. Load data when a function is called, not here.
        """
        return {}

    def visualize(self, model: Any) -> Mapping[str, Tensor | str]:
        """Return pictures (3, H, W) uint8, videos (T, 3, H, W) and texts by name.

        They are logged after each evaluation. Called on the main rank only.
        """
        return {}

    def finished(self, scores: dict[str, float]) -> str | None:
        """Return why training is done after this evaluation, or None. The same on every rank."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the recipe's own state: tensors and plain values, the same on every rank."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        return


def _public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


HOOKS = {name: value for name, value in _public(Recipe).items() if callable(value)}
ATTRIBUTES = tuple(name for name in _public(Recipe) if name not in HOOKS)
WITH_REASON = ("replayable", "compile_pays", "stackable")
REQUIRED = tuple(sorted(Recipe.__abstractmethods__))


def check_recipe(kind: object) -> None:
    """Refuse a class that is not a recipe, before anything is built."""
    name = f"{getattr(kind, '__module__', '?')}.{getattr(kind, '__qualname__', kind)}"
    if not (isinstance(kind, type) and issubclass(kind, Recipe)):
        raise ConfigError(
            f"recipe._target_={name} does not derive from overt.Recipe; write "
            f"`class {name.rpartition('.')[2]}(Recipe)` (see `overt docs add_a_recipe`)"
        )
    if kind.__abstractmethods__:
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise ConfigError(
            f"the recipe {name} has no {missing}; a recipe needs {', '.join(REQUIRED)} "
            "(see `overt docs add_a_recipe`)"
        )
    for owner in kind.__mro__:  # mixins as well
        if owner not in (Recipe, ABC, object):
            for member, value in _public(owner).items():
                _check_member(name, member, value)


def check_instance(recipe: Recipe) -> None:
    """Refuse values that a recipe's `__init__` gave to names that are nearly, or not, its to give.

    A misspelled attribute would have no effect, and a value in place of a hook would be called.
    """
    name = type(recipe).__qualname__
    for attribute in ATTRIBUTES:
        _check_attribute(name, attribute, getattr(recipe, attribute))
    for member, value in vars(recipe).items():
        if member in HOOKS and not callable(value):
            raise ConfigError(
                f"{name}.__init__ sets self.{member}={value!r}, which hides the hook {member}; "
                "choose another name"
            )
        if not member.startswith("_"):
            _refuse_near_miss(name, member, ATTRIBUTES, "has no effect")


def _check_attribute(recipe: str, attribute: str, value: Any) -> None:
    """Refuse a value that the engine would misread; one of `unscored` is not to be its letters."""
    if attribute == "unscored":
        is_right = isinstance(value, tuple) and all(isinstance(part, str) for part in value)
        expected = 'a tuple of prefixes, such as ("head.",)'
    elif attribute in WITH_REASON:
        is_right = isinstance(value, bool | str)
        expected = "True or False, or a text that says why not"
    else:
        is_right, expected = isinstance(value, bool), "True or False"
    if not is_right:
        raise ConfigError(f"{recipe}.{attribute}={value!r}; expected {expected}")


def _check_member(recipe: str, member: str, value: Any) -> None:
    """Refuse what is nearly a hook or an attribute, or a hook that cannot be called as one."""
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if not inspect.isfunction(function):
        if member in HOOKS and not callable(value):
            raise ConfigError(
                f"{recipe}.{member}={value!r} takes the place of the hook {member}; choose "
                "another name, or write a method"
            )
        if not isinstance(value, type):
            _refuse_near_miss(recipe, member, ATTRIBUTES, "has no effect")
        return
    if member in ATTRIBUTES:
        raise ConfigError(
            f"{recipe}.{member} is a method, and the engine reads a value; write `{member} = ...`, "
            "or a property"
        )
    if member not in HOOKS:
        _refuse_near_miss(recipe, member, HOOKS, "would never be called")
        return
    expected = list(inspect.signature(HOOKS[member]).parameters)
    declared = expected[1:] if isinstance(value, staticmethod) else expected
    try:
        inspect.signature(function).bind(*declared)
    except TypeError as error:
        raise ConfigError(
            f"{recipe}.{member}{inspect.signature(function)} cannot be called as "
            f"{member}({', '.join(expected)}): {error}"
        ) from None


def _refuse_near_miss(recipe: str, member: str, allowed: Collection[str], effect: str) -> None:
    if member in allowed or member in HOOKS or member in ATTRIBUTES:
        return
    close = _near_misses(member, tuple(allowed))
    if close:
        kind = "a hook" if close[0] in HOOKS else "an attribute that the engine reads"
        raise ConfigError(
            f"{recipe}.{member} is not {kind} and {effect}; did you mean {close[0]}? A member of "
            "your own needs a name that differs more, or a leading underscore"
        )


@cache  # a process that builds many recipes meets the same members again and again
def _near_misses(member: str, allowed: tuple[str, ...]) -> list[str]:
    close = difflib.get_close_matches(member, allowed, n=1, cutoff=0.85)
    # A few wrong letters weigh more in the ratio above the further they are apart: vizualise.
    return close + [name for name in allowed if len(name) > 6 and _edits(member, name) <= 2]


def _edits(word: str, target: str) -> int:
    """Return the Levenshtein distance: letters to insert, delete or replace."""
    row = list(range(len(target) + 1))
    for number, letter in enumerate(word, 1):
        diagonal, row[0] = row[0], number
        for index, expected in enumerate(target, 1):
            replaced = diagonal + (letter != expected)
            diagonal = row[index]
            row[index] = min(diagonal + 1, row[index - 1] + 1, replaced)
    return row[-1]
