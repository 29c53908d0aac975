"""overt/recipes/pcdiff/voxel_recipe.py: stage two learns and is scored beside stage one's solid."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_VOXELS, curve, first_batch

from overt.config import load
from overt.data.skulls.prepare import load_case
from overt.errors import ConfigError
from overt.recipes.pcdiff.data import HeldOutCases
from overt.recipes.pcdiff.voxel_data import bone_at_nodes


def test_it_learns_and_is_scored(tmp_path: Path) -> None:
    words = ("exp_name=learns", "training.num_steps=20", "optimizer.lr=5e-3")
    scores = SMALL_VOXELS.trainer(tmp_path, *words).train()
    losses = curve(tmp_path / "runs" / "learns")
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])
    assert {"dsc", "bdsc", "val_loss", "solid_dsc", "solid_bdsc", "solid_hd95"} <= set(scores)
    assert scores["solid_dsc"] > 0.3


def test_the_ceiling_is_the_score_of_the_true_field_and_rises_with_its_nodes(
    tmp_path: Path,
) -> None:
    recipe = SMALL_VOXELS.recipe(tmp_path)
    recipe.build_dataset()  # writes the skulls
    settings = recipe.settings
    case = HeldOutCases(settings.data, settings.evaluation).case(0)
    volumes = load_case(case.item, settings.data.dataset)
    ceilings = []
    for side in (16, 32, 64):
        complete = volumes.skull | volumes.implant
        bone = bone_at_nodes(complete, volumes.to_indices, case.cloud, side)
        row = recipe.score_case(case, np.where(bone, -0.5, 0.5).astype(np.float32))
        assert row["dsc"] == row["ceiling_dsc"]
        assert row["val_loss"] == 0
        ceilings.append(row["ceiling_dsc"])
    assert ceilings[0] < ceilings[1] < ceilings[2]
    assert ceilings[2] > 0.8


def test_the_loss_is_a_share_of_the_global_batch(tmp_path: Path) -> None:
    recipe = SMALL_VOXELS.recipe(tmp_path)
    torch.manual_seed(0)
    model, counts = recipe.build_model(), {"samples": torch.tensor(2)}
    whole = first_batch(recipe, 2)
    total = recipe.loss(model, whole, counts, 0).total
    parts = [
        type(whole)(whole.points[i : i + 1], whole.bone[i : i + 1], whole.names[i : i + 1])
        for i in range(2)
    ]
    added = sum(recipe.loss(model, part, counts, 0).total for part in parts)
    torch.testing.assert_close(added, total, atol=1e-4, rtol=1e-3)


def test_the_official_recipe_has_the_published_numbers() -> None:
    config = load(["recipe=pcdiff_voxels", "data.root=somewhere"])
    model = config.settings.model
    assert (model.side, model.sigma, model.offsets, model.grid) == (512, 2.0, 7, 32)
    assert (config.optimizer.lr, config.training.global_batch_size) == (5e-4, 2)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.width=12", "multiple of 8"),
        ("model.grid=5", "multiple of 2"),
        ("evaluation.seed=-1", r"evaluation\.seed=-1; it must be at least 0"),
        ("data.close_ups={fraction: 0.5, side: 1.6, side_jitter: 0.1, shift: 0.1}", "whole skulls"),
    ],
)
def test_impossible_settings_are_refused(word: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        SMALL_VOXELS.config(tmp_path, word)
