"""A PCDiff small enough for tests: clouds of 160 points of two synthetic skulls."""

from functools import cache
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from torch import nn
from toy_runs import losses_by_step

from overt.config import Config, build_recipe, check, compose_values
from overt.data.rng import sample_rng
from overt.distributed import init_distributed
from overt.engine.trainer import Trainer
from overt.recipes.pcdiff.data import CloudBatch
from overt.recipes.pcdiff.recipe import PCDiffRecipe

SMALL = [
    "data.synthetic.count=2",
    "data.synthetic.side=24",
    "data.synthetic.points=400",
    "data.num_points=160",
    "data.num_implant_points=32",
    "model.width_multiplier=0.5",
    "model.resolution_multiplier=0.5",
    "model.embed_dim=16",
    "evaluation.steps=3",
    "evaluation.cases=3",
    "evaluation.batch_size=2",
    "evaluation.loss_times=2",
    "training.global_batch_size=5",
    "training.num_workers=0",
    "training.device=cpu",
    "training.evaluate_at_start=false",
    "logging.every_steps=1",
    "logging.use_tensorboard=false",
]
# One global batch, to be split in any way.
SPLIT = [
    "training.global_batch_size=4",
    "training.num_steps=4",
    "training.evaluate_every_steps=null",
    "checkpoint.metric_name=null",
]


@cache
def composed() -> DictConfig:
    """Composing takes most of a second; the overrides of a test are merged into it."""
    return compose_values(["recipe=pcdiff_tiny", *SMALL])


def small_config(root: Path, *overrides: str) -> Config:
    own = [f"data.root={root / 'skulls'}", f"output_dir={root / 'runs'}", *overrides]
    values = OmegaConf.merge(composed(), OmegaConf.from_dotlist(own))
    assert isinstance(values, DictConfig)
    return check(values, ["overt", "torch.optim"])


def small_recipe(root: Path, *overrides: str) -> PCDiffRecipe:
    recipe = build_recipe(small_config(root, *overrides))
    assert isinstance(recipe, PCDiffRecipe)
    return recipe


def first_batch(recipe: PCDiffRecipe, count: int = 4) -> CloudBatch:
    dataset = recipe.build_dataset()
    return recipe.collate(
        [dataset.sample(index, sample_rng(0, 0, index)) for index in range(count)]
    )


def make_trainer(root: Path, *overrides: str, dropout: bool = True) -> Trainer:
    config = small_config(root, *overrides)
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
    for part in trainer.model.modules() if not dropout else ():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return trainer


def train_without_dropout(root: Path, *overrides: str) -> None:
    """Which units are dropped depends on how a batch is split; nothing else does."""
    make_trainer(root, *overrides, dropout=False).train()


def curve(run: Path) -> list[float]:
    return [loss for _, loss in sorted(losses_by_step(run).items())]
