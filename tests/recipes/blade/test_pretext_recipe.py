"""overt/recipes/blade/pretext_recipe.py: a backbone that learned to see depth serves DepthNet."""

import math
from pathlib import Path

import pytest
import torch
from small_recipes import BLADE_VIT, SMALL_BLADE, curve
from toy_runs import weights

from overt.errors import ConfigError
from overt.recipes.blade.pretext_recipe import NEAREST_M, log_errors


def test_a_pretext_backbone_serves_depthnet(tmp_path: Path) -> None:
    small = [
        "model.depth.custom.width=24",
        "model.depth.custom.depth=4",
        "model.depth.custom.features=16",
        "model.depth.custom.channels=[8,8,16,16]",
        "data.depth_size=70",
        "data.synthetic.depth_maps=true",
        "schedule.warmup_fraction=0",
    ]
    run = SMALL_BLADE["pretext"].train(tmp_path, *small)
    assert all(math.isfinite(value) for value in curve(run))
    checkpoint = run / "checkpoints" / "best"
    recipe = SMALL_BLADE["depthnet"].recipe(
        tmp_path, *BLADE_VIT, f"model.depth.backbone_checkpoint={checkpoint}"
    )
    model = recipe.build_model()
    model.require_weights("")
    stored = weights(run, 4)["depth_backbone.pretrained.cls_token"]
    assert torch.equal(model.depth_backbone.pretrained.cls_token, stored)


def test_pixels_without_a_depth_cost_nothing() -> None:
    true = torch.tensor([[2.0, 0.0, 1.0]])
    predicted = torch.tensor([[4.0, 9.0, -1.0]], requires_grad=True)
    errors = log_errors(predicted, true)
    expected = [math.log(2), 0.0, -math.log(NEAREST_M)]  # what is too near counts as nearest
    torch.testing.assert_close(errors[0], torch.tensor(expected))
    errors.sum().backward()
    assert predicted.grad is not None
    assert predicted.grad[0, 1] == 0


def test_a_backbone_that_learns_by_itself_needs_no_pretext(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.depth\.encoder=conv is trained with DepthNet"):
        SMALL_BLADE["pretext"].recipe(tmp_path, "model.depth.encoder=conv")
