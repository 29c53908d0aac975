"""overt/tasks.py: which of the shipped recipes can do what, and what is said where one cannot."""

import importlib
import json
from typing import Any

import numpy as np
import pytest
from toy_recipe.recipe import Toy

from overt import tasks
from overt.errors import ConfigError
from overt.tasks import (
    Exportable,
    ImageEncoder,
    ImplantVoxelizer,
    OnlinePointTracker,
    PersonEstimate,
    PersonEstimator,
    PointTracker,
    RowScorer,
    SkullCompleter,
    need_task,
)

RECIPES = {
    "overt.recipes.cotracker3.recipe.CoTracker3OfflineRecipe": {PointTracker},
    "overt.recipes.cotracker3.recipe.CoTracker3OnlineRecipe": {PointTracker, OnlinePointTracker},
    "overt.recipes.lbm.recipe.LBMRecipe": {PointTracker, OnlinePointTracker, Exportable},
    "overt.recipes.pcdiff.recipe.PCDiffRecipe": {SkullCompleter},
    "overt.recipes.pcdiff.voxel_recipe.VoxelRecipe": {ImplantVoxelizer},
    "overt.recipes.hjepa.recipe.HJEPARecipe": {ImageEncoder, Exportable},
    "overt.recipes.blade.depth_recipe.DepthNetRecipe": set(),
    "overt.recipes.blade.pose_recipe.PoseNetRecipe": {PersonEstimator},
}
ALL = {
    PointTracker, OnlinePointTracker, Exportable, SkullCompleter, PersonEstimator, ImageEncoder,
    ImplantVoxelizer,
}  # fmt: skip


def without_building(target: str) -> Any:
    """A recipe whose methods are there to be asked for."""
    module, _, name = target.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    return kind.__new__(kind)


@pytest.mark.parametrize("target", RECIPES)
def test_recipes_can_do_what_their_commands_ask_for(target: str) -> None:
    recipe = without_building(target)
    assert {task for task in ALL if isinstance(recipe, task)} == RECIPES[target]


def test_a_recipe_that_can_is_handed_on_and_one_that_cannot_is_refused() -> None:
    tracker = without_building("overt.recipes.lbm.recipe.LBMRecipe")
    assert need_task(tracker, PointTracker, "lbm") is tracker
    toy = Toy.__new__(Toy)
    with pytest.raises(ConfigError) as refused:
        need_task(toy, PointTracker, "toy")
    assert "recipe toy does not offer PointTracker: it has no track_points" in str(refused.value)
    assert not isinstance(toy, RowScorer)


def test_every_task_names_its_command_or_use() -> None:
    protocols = [value for value in vars(tasks).values() if getattr(value, "_is_protocol", False)]
    own = [task for task in protocols if task.__module__ == "overt.tasks"]
    assert len(own) >= 8
    for task in own:
        assert task.__doc__
        methods = [value for name, value in vars(task).items() if not name.startswith("_")]
        assert methods
        assert all(method.__doc__ for method in methods), task


def test_a_person_s_camera_is_plain_json() -> None:
    person = PersonEstimate(
        vertices=np.zeros((4, 3), np.float32),
        faces=np.zeros((2, 3), np.int64),
        joints=np.zeros((55, 3), np.float32),
        focal=500.0,
        centre=(16.0, 12.0),
        image_size=(24, 32),
        pelvis=np.array([0, 0, 2], np.float32),
        translation=np.zeros(3, np.float32),
        global_orient=np.zeros(3, np.float32),
        body_pose=np.zeros((21, 3), np.float32),
        betas=np.zeros(10, np.float32),
        keypoints=np.zeros((12, 2), np.float32),
        overlay=np.zeros((24, 32, 3), np.uint8),
    )
    camera = json.loads(json.dumps(person.camera()))
    assert camera["K"] == [[500.0, 0.0, 16.0], [0.0, 500.0, 12.0], [0.0, 0.0, 1.0]]
    assert camera["image_height_width"] == [24, 32]
    assert camera["pelvis"] == [0.0, 0.0, 2.0]
    assert len(camera["smplx"]["body_pose"]) == 21
    assert "vertices" not in camera
