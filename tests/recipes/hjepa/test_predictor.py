"""overt/recipes/hjepa/predictor.py: hidden patches are predicted from visible ones alone."""

from pathlib import Path

import pytest
import torch
from small_recipes import SMALL_HJEPA, first_batch

from overt.recipes.hjepa.data import Batch
from overt.recipes.hjepa.model import HJEPA
from overt.recipes.hjepa.recipe import HJEPARecipe


def build(root: Path, *overrides: str) -> tuple[HJEPARecipe, HJEPA, Batch]:
    recipe = SMALL_HJEPA.recipe(root, *overrides)
    torch.manual_seed(0)
    return recipe, recipe.build_model(), first_batch(recipe)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jepa")


def test_the_prediction_does_not_see_what_is_hidden(root: Path) -> None:
    _, model, batch = build(root)
    hidden = torch.ones(4, 16, dtype=torch.bool)
    hidden.view(-1)[batch.layout.visible.rows] = False
    pixels = hidden.view(4, 1, 4, 4).repeat_interleave(4, 2).repeat_interleave(4, 3)
    changed = torch.where(pixels, 255 - batch.images, batch.images)
    before, after = (model(images, batch.layout) for images in (batch.images, changed))
    assert torch.equal(before.predictions[0], after.predictions[0])
    assert not torch.allclose(before.targets[0], after.targets[0])
