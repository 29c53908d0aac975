"""overt/recipes/pcdiff/evaluation.py: scores by case, for any world size and ensemble."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_PCDIFF

from overt.distributed import init_distributed


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pcdiff")
    SMALL_PCDIFF.recipe(root).build_dataset()  # writes the skulls
    return root


def scores_here(root: Path) -> dict[str, float]:
    recipe = SMALL_PCDIFF.recipe(root, "evaluation.volumes=false")
    world = init_distributed("cpu")
    torch.manual_seed(0)
    with torch.inference_mode():
        return recipe.evaluate(recipe.build_model().eval(), world)


def test_scores_do_not_depend_on_the_number_of_processes(
    run_processes: Callable[..., list[dict[str, float]]], root: Path
) -> None:
    first, second = run_processes(scores_here, 2, root)
    assert first == second == scores_here(root)


def test_an_ensemble_has_members_of_its_own(root: Path) -> None:
    recipe = SMALL_PCDIFF.recipe(root, "evaluation.ensemble=3")
    torch.manual_seed(0)
    model = recipe.build_model().eval()
    skull = np.random.default_rng(0).normal(size=(300, 3)) * 40
    with torch.inference_mode():
        found = recipe.complete(model, skull, "skull.npy")
    assert found.implants.shape == (3, 32, 3)
    assert not torch.allclose(found.implants[0], found.implants[1])
    assert found.known.points.shape == (128, 3)
