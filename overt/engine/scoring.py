"""One evaluation of a model between two steps, without side effects on training."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from overt.checkpoint import random_state
from overt.config.schema import TrainingSection
from overt.distributed import World
from overt.engine.returned import returned
from overt.errors import ConfigError, nearest
from overt.recipe import Recipe
from overt.run.session import ranks_checkpoints

if TYPE_CHECKING:
    from overt.recipe import Evaluation

OWN = ""  # stands for `Recipe.evaluate` among the names of evaluation sets


class Cadence:
    """When each evaluation set of a run is due."""

    def __init__(self, recipe: Recipe, training: TrainingSection) -> None:
        names = list(evaluation_sets(recipe))
        for name in names:
            if not name or "/" in name:
                raise ConfigError(
                    f"{type(recipe).__qualname__}.evaluation_sets has a set {name!r}; its scores "
                    "are called NAME/SCORE: use a name that is not empty and has no slash"
                )
        for name in training.evaluate_sets:
            if name not in names:
                raise ConfigError(
                    f"training.evaluate_sets.{name}: the recipe has no such evaluation set"
                    f"{nearest(name, names)}; it has {', '.join(names) or 'none'}"
                )
        self.every = dict.fromkeys([OWN, *names], training.evaluate_every_steps)
        self.every |= training.evaluate_sets

    def due(self, is_due: Callable[[int | None], bool]) -> list[str]:
        """Return the sets to score now; `is_due` tells whether that many steps are."""
        return [name for name, every_steps in self.every.items() if is_due(every_steps)]

    def others(self, sets: Collection[str] | None) -> list[str]:
        """Return the sets that are not among these; None stands for all."""
        return [name for name in self.every if sets is not None and name not in sets]

    def set_of(self, score: str) -> str:
        """Return the set that a score belongs to."""
        name = score.partition("/")[0]
        return name if "/" in score and name in self.every else OWN

    def ranks(self, metric_name: str | None, scores: dict[str, float]) -> bool:
        """Return whether these scores rank a checkpoint: the metric's set was due."""
        return ranks_checkpoints(metric_name, scores, self.set_of)


def evaluation_sets(recipe: Recipe) -> dict[str, Evaluation]:
    """Return the recipe's further evaluations by name."""
    return returned(recipe, "evaluation_sets", recipe.evaluation_sets())


def samples_of(recipe: Recipe, model: Any) -> Mapping[str, Tensor | str]:
    """Return the recipe's pictures, videos and texts by name."""
    return returned(recipe, "visualize", recipe.visualize(model)) or {}


def reason_to_end(recipe: Recipe, scores: dict[str, float]) -> str | None:
    """Return why the recipe ends training after these scores, or None."""
    return returned(recipe, "finished", recipe.finished(scores))


def score_sets(
    recipe: Recipe, model: Any, world: World, names: Collection[str] | None = None
) -> dict[str, float]:
    """Return the scores of these sets, or of all: of further ones under NAME/SCORE."""
    kind, scores = type(recipe).__qualname__, {}
    if names is None or OWN in names:
        scores = _numbers(recipe.evaluate(model, world), f"{kind}.evaluate")
    for name, evaluate in evaluation_sets(recipe).items():
        if names is None or name in names:
            values = _numbers(evaluate(model, world), f"the evaluation set {name} of {kind}")
            scores |= {f"{name}/{key}": value for key, value in values.items()}
    return scores


def _numbers(scores: object, owner: str) -> dict[str, float]:
    """Return scores as Python floats; refuse anything else."""
    if not isinstance(scores, Mapping):
        raise ConfigError(
            f"{owner} returned {type(scores).__name__}, expected a dict of scores by name; return "
            "{} where there are none"
        )
    numbers: dict[str, float] = {}
    for name, value in scores.items():
        # A tensor or array of one element.
        number = value.item() if getattr(value, "shape", None) in ((), (1,)) else value
        if not isinstance(name, str) or not isinstance(number, int | float):
            raise ConfigError(
                f"{owner} returned {name!r}: {_short(value)}; expected a name and a number, NaN "
                "where a score is unknown"
            )
        numbers[name] = number
    return numbers


def _short(value: object) -> str:
    shape = getattr(value, "shape", None)
    return repr(value)[:80] if shape is None else f"a {type(value).__name__} of {tuple(shape)}"


def score(
    recipe: Recipe,
    gathered: AbstractContextManager[nn.Module],
    world: World,
    autocast: AbstractContextManager[Any],
    log_sample: Callable[[str, Tensor | str], None],
    names: Collection[str] | None = None,
) -> dict[str, float]:
    """Return the recipe's scores; pictures and texts are made on the main rank."""
    with random_state.undisturbed(), gathered as model:
        was_training = model.training
        model.eval()
        try:
            with torch.inference_mode(), autocast:
                scores = score_sets(recipe, model, world, names)
                if world.is_main and (names is None or OWN in names):
                    for name, sample in samples_of(recipe, model).items():
                        log_sample(name, sample)
        finally:
            model.train(was_training)
    return scores
