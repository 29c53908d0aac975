"""A trained model from its checkpoint: its configuration, and its weights in a module.

Shared by the commands that use a model without training it. Imports torch only when it loads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from overt.checkpoint.recorded import (
    missing_keys,
    recorded_recipe,
    recorded_settings,
    recorded_state,
)
from overt.config import Config, load
from overt.errors import CheckpointError, ConfigError
from overt.tasks import TrainingRecaller

if TYPE_CHECKING:
    from torch import nn

    from overt.checkpoint.weights import LoadReport
    from overt.files.key_maps import KeyRule
    from overt.recipe import Recipe

logger = logging.getLogger(__name__)

SHIPPED_PREFIX = "shipped:"  # before the name of weights that come with the package


def configure(
    checkpoint: Path,
    overrides: Sequence[str],
    packages: Sequence[str],
    remedy: str = "recipe=NAME",
    needs_data: bool = True,
) -> Config:
    """Compose `recipe=NAME` of the overrides, else the checkpoint's configuration or recipe.

    `remedy` is what the user must add where neither is there. `needs_data=False` builds a model
    for inference: no data set has to be named.
    """
    if not checkpoint.exists():
        raise CheckpointError(f"checkpoint {checkpoint} does not exist; check the path")
    if any(word.startswith("recipe=") for word in overrides):
        return load(overrides, packages=packages, needs_data=needs_data)
    stored = checkpoint / "config.yaml"
    if stored.is_file():
        return load(overrides, str(stored), packages, needs_data)
    recipe = recorded_recipe(checkpoint)
    if recipe is None:
        from overt.checkpoint.manifest import checkpoint_of_run

        hint = checkpoint_of_run(checkpoint) or f"; add {remedy}"
        raise ConfigError(f"{checkpoint} holds no configuration{hint}")
    sections = recorded_settings(checkpoint)
    words = [f"recipe={recipe}", *overrides]
    config = load(words, packages=packages, needs_data=needs_data, sections=sections)
    model = getattr(config.settings, "model", None)
    saved = model.saved_files() if isinstance(model, SavesFiles) else ()
    _warn_of_files(checkpoint, sections or {}, overrides, saved)
    return config


@runtime_checkable
class SavesFiles(Protocol):
    """A section `model` with files of weights that need not be named again after training."""

    def saved_files(self) -> Sequence[str]:
        """Return the keys of files whose weights are in every checkpoint of the model."""


def _warn_of_files(
    checkpoint: Path,
    sections: Mapping[str, Any],
    overrides: Sequence[str],
    saved: Sequence[str],
) -> None:
    """Warn where the model was built with other files: the recipe may name others, or none."""
    known = {word.partition("=")[0] for word in overrides}.union(saved)
    missing = [key for key in missing_keys(sections.get("model"), "model") if key not in known]
    if missing and "model" not in known:
        logger.warning(
            "%s was trained with files for %s, whose names are not recorded; using the recipe's "
            "values. To use another file, add KEY=FILE",
            checkpoint,
            ", ".join(missing),
        )


def shipped_weights(recipe: str) -> Path:
    """Return the path of the trained weights that come with the package."""
    folder = Path(__file__).parents[1] / "weights"
    file = folder / f"{recipe}.safetensors"
    if not file.is_file():
        names = ", ".join(sorted(each.stem for each in folder.glob("*.safetensors")))
        raise ConfigError(f"no weights of {recipe} come with overt; there are: {names}")
    return file


def load_model(
    recipe: Recipe, checkpoint: Path, part: str = "auto", rename: Sequence[KeyRule] = ()
) -> tuple[nn.Module, LoadReport]:
    """Build the recipe's model with the checkpoint's weights, in evaluation mode.

    `auto` takes the average of the weights where there is one. `rename`: see `load_weights`.
    """
    from overt.checkpoint.reading import folder_parts
    from overt.checkpoint.weights import load_weights

    if part == "auto":
        has_average = checkpoint.is_dir() and "ema" in folder_parts(checkpoint)
        part = "ema" if has_average else "model"
    model = recipe.build_model()
    report = load_weights(checkpoint, model, part=part, rename=rename)
    _refuse_missing(report, model, recipe.unscored)
    _refuse_nonfinite(report, model)
    if isinstance(recipe, TrainingRecaller):
        recipe.recall_training(recorded_state(checkpoint))
    return model.eval(), report


def _refuse_missing(report: LoadReport, model: nn.Module, unscored: tuple[str, ...]) -> None:
    """Refuse a file that leaves trained tensors at random values, other than training-only ones."""
    from overt.checkpoint.weights import trained_keys
    from overt.files.weight_files import some

    trained = trained_keys(model)
    missing = [key for key in report.missing if key in trained and not key.startswith(unscored)]
    if missing:
        raise CheckpointError(
            f"{report.source}: {len(missing)} of {len(trained)} trained tensors are not in the "
            f"file: {some(missing)}. They would be random numbers. Give a checkpoint of the whole "
            "model, or set the section model to what the file was trained with."
        )


def _refuse_nonfinite(report: LoadReport, model: nn.Module) -> None:
    """Refuse weights whose outputs are NaN: scores and tracks would look like a bad model's."""
    from overt.checkpoint.finite import nonfinite_tensors
    from overt.files.weight_files import some

    poisoned = nonfinite_tensors(model)
    if poisoned:
        raise CheckpointError(
            f"{report.source}: {len(poisoned)} tensor(s) hold NaN, Inf or numbers beyond use: "
            f"{some(poisoned)}. The training that wrote them diverged, or the file is damaged; "
            "give an earlier checkpoint, or copy the file again."
        )
