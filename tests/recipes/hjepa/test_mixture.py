"""Further sets of images in training."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_recipes import SMALL_HJEPA

from overt.data.images.synthetic import write_images
from overt.errors import ConfigError

TARGET = "recipe._target_=overt.recipes.hjepa.baselines."


def test_sets_are_mixed_by_weight(tmp_path: Path) -> None:
    write_images(tmp_path / "other", classes=1, per_class=5, size=16, seed=3)
    mixed = f"data.mixture=[{{root: {tmp_path / 'other'}, weight: 0.5}}]"
    small = replace(SMALL_HJEPA, words=(*SMALL_HJEPA.words, mixed))
    recipe = small.recipe(tmp_path)
    dataset = recipe.build_dataset()
    total = len(recipe.sets[0]) + 5
    assert dataset.counts == pytest.approx([total * 2 / 3, total / 3], abs=1)
    sample = dataset.sample(0, np.random.default_rng(0))
    assert sample.image.shape == (3, 16, 16)
    assert len(recipe.scored_sets()[0]) == len(recipe.sets[0])  # the bank has labels only
    alone = ("model.use_target_encoder=false", "loss.type=cjepa")
    assert len(small.recipe(tmp_path, f"{TARGET}SimCLRRecipe", *alone).build_dataset()) == total
    with pytest.raises(ConfigError, match=r"set data.mixture=\[\]"):
        small.recipe(tmp_path, f"{TARGET}SupervisedRecipe").build_dataset()
