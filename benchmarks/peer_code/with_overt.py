"""The training with overt: the recipe is in overt_recipe, here it is only called."""

from __future__ import annotations

from pathlib import Path

from shared import fill
from torch import nn

from overt.config import Config, build_recipe, load
from overt.distributed import init_distributed, shutdown
from overt.engine.trainer import Trainer

PACKAGE = str(Path(__file__).parent / "overt_recipe")


def configure(steps: int, folder: Path) -> Config:
    # The number of steps changes the schedule of a run; this one is constant.
    accepted = "checkpoint.accept_changes=[training.num_steps]"
    words = ["recipe=peer", f"output_dir={folder}", f"training.num_steps={steps}", accepted]
    return load(words, packages=[PACKAGE])


def train(steps: int, folder: Path) -> nn.Module:
    config = configure(steps, folder)
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
    trainer.train()
    return trainer.model


def evaluate() -> float:
    recipe = build_recipe(configure(1, Path("unused")))
    world = init_distributed("cpu")
    model = recipe.build_model().eval()
    fill(model)
    score = recipe.evaluate(model, world)["loss"]
    shutdown()
    return score
