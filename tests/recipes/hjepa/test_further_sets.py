"""Scores on other data: labeled sets, and images with masks, each beside its baselines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_recipes import SMALL_HJEPA

from overt.data.images.synthetic import write_images
from overt.distributed import init_distributed
from overt.engine.scoring import score_sets
from overt.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shapes as a set of their own, and images whose halves differ in color."""
    folder = tmp_path_factory.mktemp("further")
    for part, seed in (("train", 1), ("test", 2)):
        write_images(folder / "shapes" / part, classes=2, per_class=4, size=16, seed=seed)
    generator = np.random.default_rng(0)
    (folder / "halves" / "images").mkdir(parents=True)
    (folder / "halves" / "masks").mkdir()
    for number in range(6):
        mask = np.zeros((16, 16), np.uint8)
        mask[:, generator.integers(4, 13) :] = 9
        pixels = np.where(mask[..., None], (220, 40, 40), (40, 40, 220))
        pixels = pixels + generator.integers(-20, 20, (16, 16, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "halves/images" / f"{number}.png")
        Image.fromarray(mask).save(folder / "halves/masks" / f"{number}.png")
    return folder


def recipe_with(root: Path, *words: str) -> Any:
    """Return the recipe with sets, which are new keys: composed and not merged."""
    return replace(SMALL_HJEPA, words=(*SMALL_HJEPA.words, *words)).recipe(root)


def test_further_sets_are_scored_beside_their_baselines(root: Path, tmp_path: Path) -> None:
    recipe = recipe_with(
        root, f"evaluation.transfer={{shapes: {root / 'shapes'}}}",
        f"evaluation.dense={{halves: {root / 'halves'}}}", f"evaluation.export={tmp_path}",
        "evaluation.linear_probe.epochs=5", "data.margin=1.0",
    )  # fmt: skip
    recipe.check_evaluation_data()
    torch.manual_seed(0)
    model = recipe.build_model().eval()
    with torch.inference_mode():
        scores = score_sets(recipe, model, init_distributed("cpu"), ["shapes", "halves"])
    assert {"shapes/knn_top1", "shapes/pixels_knn_top1", "shapes/rankme"} <= scores.keys()
    assert (tmp_path / "shapes" / "held_out.safetensors").is_file()
    halves = {key: value for key, value in scores.items() if key.startswith("halves/")}
    # Two colors are told apart by anything but the most frequent class; borders cross patches.
    assert halves.pop("halves/majority_miou") < 0.45
    assert halves.keys() == {
        f"halves/{kind}{way}_miou" for kind in ("", "pixels_") for way in ("knn", "linear")
    }
    assert min(halves.values()) > 0.7


def test_a_missing_set_is_named_before_training(root: Path) -> None:
    for key in ("transfer", "dense"):
        recipe = recipe_with(root, f"evaluation.{key}={{lost: {root / 'lost'}}}")
        with pytest.raises(DataError, match="lost"):
            recipe.check_evaluation_data()
    with pytest.raises(ConfigError, match="has a set 'a/b'"):
        recipe_with(root, "evaluation.dense={a/b: c}")
    with pytest.raises(ConfigError, match="both have a set same"):
        recipe_with(root, "evaluation.dense={same: a}", "evaluation.transfer={same: b}")
