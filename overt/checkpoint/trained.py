"""A trained model from its checkpoint: its configuration, and its weights in a module.

Shared by the commands that use a model without training it. Imports torch only when it loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from overt.config import Config, load
from overt.errors import CheckpointError, ConfigError
from overt.files.yaml_text import read_yaml

if TYPE_CHECKING:
    from torch import nn

    from overt.checkpoint.weights import LoadReport
    from overt.files.key_maps import KeyRule
    from overt.recipe import Recipe

RECIPE_KEY = "overt.recipe"  # in the metadata of exported safetensors files


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
        raise ConfigError(f"{checkpoint} holds no configuration; add {remedy}")
    return load([f"recipe={recipe}", *overrides], packages=packages, needs_data=needs_data)


def recorded_recipe(checkpoint: Path) -> str | None:
    """Return the recipe that a checkpoint folder or an exported safetensors file names."""
    name = (
        _stored_name(checkpoint) if checkpoint.is_dir() else _metadata(checkpoint).get(RECIPE_KEY)
    )
    return name if isinstance(name, str) and name.isidentifier() else None


def _stored_name(folder: Path) -> object:
    """Return the name of the recipe in a folder's configuration, which need not be usable here."""
    try:
        values = read_yaml(folder / "config.yaml")
    except ConfigError:
        return None
    return OmegaConf.select(values, "recipe.name") if OmegaConf.is_dict(values) else None


def _metadata(file: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file; no other file has any."""
    from safetensors import SafetensorError, safe_open

    from overt.files.weight_files import is_safetensors

    if not file.is_file() or not is_safetensors(file):
        return {}
    try:
        with safe_open(file, framework="np") as opened:
            return opened.metadata() or {}
    except (SafetensorError, OSError):
        return {}  # whoever reads its tensors says what is wrong with it


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
