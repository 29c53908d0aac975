"""An H-JEPA small enough for tests: 16 patches of 4 pixels, two narrow blocks, three levels."""

from functools import cache
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from toy_runs import losses_by_step

from overt.config import Config, build_recipe, check, compose_values
from overt.data.rng import sample_rng
from overt.distributed import World, init_distributed
from overt.engine.trainer import Trainer
from overt.recipes.hjepa.data import Batch
from overt.recipes.hjepa.recipe import HJEPARecipe

SMALL = [
    "data.synthetic.classes=4",
    "data.synthetic.per_class=9",
    "data.synthetic.size=16",
    "data.image_size=[16,16]",
    "data.masking.min_keep=2",
    "model.embed_dim=32",
    "model.depth=2",
    "model.num_heads=2",
    "model.predictor.width=16",
    "model.predictor.depth=1",
    "model.predictor.num_heads=2",
    "evaluation.k=3",
    "evaluation.collapse.every_steps=2",
    "training.batch_size=8",
    "training.num_workers=0",
    "training.device=cpu",
    "training.evaluate_at_start=false",
    "logging.every_steps=1",
    "logging.use_tensorboard=false",
]
# One global batch, to be split in any way.
SPLIT = [
    "training.global_batch_size=8",
    "training.num_steps=6",
    "training.drop_last=false",
    "training.evaluate_every_steps=null",
    "evaluation.collapse.every_steps=null",
]


@cache
def composed() -> DictConfig:
    """Composing takes most of a second; the overrides of a test are merged into it."""
    return compose_values(["recipe=hjepa_tiny", *SMALL])


def small_config(root: Path, *overrides: str) -> Config:
    own = [f"data.root={root / 'images'}", f"output_dir={root / 'runs'}", *overrides]
    values = OmegaConf.merge(composed(), OmegaConf.from_dotlist(own))
    assert isinstance(values, DictConfig)
    return check(values, ["overt", "torch.optim"])


def small_recipe(root: Path, *overrides: str) -> HJEPARecipe:
    recipe = build_recipe(small_config(root, *overrides))
    assert isinstance(recipe, HJEPARecipe)
    return recipe


def first_batch(recipe: HJEPARecipe, count: int = 4, start: int = 0) -> Batch:
    dataset = recipe.build_dataset()
    chosen = range(start, start + count)
    return recipe.collate([dataset.sample(index, sample_rng(0, 0, index)) for index in chosen])


def make_trainer(root: Path, *overrides: str, world: World | None = None) -> Trainer:
    config = small_config(root, *overrides)
    recipe = build_recipe(config)
    assert isinstance(recipe, HJEPARecipe)
    return Trainer(config, recipe, world or init_distributed("cpu"))


def train(root: Path, *overrides: str) -> None:
    make_trainer(root, *overrides).train()


def curve(run: Path) -> list[float]:
    return [loss for _, loss in sorted(losses_by_step(run).items())]
