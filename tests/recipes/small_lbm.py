"""A small LBM for tests: its configuration, its recipe, and a batch."""

from pathlib import Path
from typing import Any

import torch

from overt.config import Config, build_recipe, load
from overt.data.rng import sample_rng
from overt.data.tracking.clips import TrackBatch
from overt.recipes.lbm.model import LBM
from overt.recipes.lbm.recipe import LBMRecipe

SMALL = [
    "data.synthetic.count=4",
    "data.synthetic.frames=5",
    "data.synthetic.height=40",
    "data.synthetic.width=40",
    "data.synthetic.points=48",
    "data.crop_size=[32,32]",
    "data.frames=4",
    "data.points=8",
    "data.held_out=1",
    "model.input_size=[32,32]",
    "model.embed_dim=16",
    "model.backbone_width=4",
    "model.memory_size=3",
    "evaluation.memory_size=3",
    "evaluation.frames=4",
    "training.num_workers=0",
    "training.device=cpu",
]


def small_config(data_root: Path | str, *overrides: str) -> Config:
    return load(["recipe=lbm_tiny", f"data.root={data_root}", *SMALL, *overrides])


def small_recipe(data_root: Path | str, *overrides: str) -> LBMRecipe:
    recipe = build_recipe(small_config(data_root, *overrides))
    assert isinstance(recipe, LBMRecipe)
    return recipe


def first_batch(recipe: LBMRecipe, samples: int = 2) -> TrackBatch:
    dataset = recipe.build_dataset()
    return recipe.collate([dataset.sample(n, sample_rng(0, 0, n)) for n in range(samples)])


def small_model(**changes: Any) -> LBM:
    sizes: dict[str, Any] = {
        "input_size": (32, 32),
        "embed_dim": 16,
        "backbone_width": 4,
        "num_levels": 3,
        "num_neighbors": 3,
        "top_k_regions": 4,
        "memory_size": 3,
        "dropout": 0.0,
        "random_memory_mask_drop": 0.0,
        "visible_threshold": 0.5,
    }
    torch.manual_seed(0)
    return LBM(**(sizes | changes))
