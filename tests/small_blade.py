"""BLADE small enough for tests: pictures of 32 pixels, narrow networks, a handful of people."""

from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from toy_runs import losses_by_step

from overt.config import Config, build_recipe, check, compose_values
from overt.data.rng import sample_rng
from overt.distributed import init_distributed
from overt.engine.trainer import Trainer

SHARED = [
    "data.synthetic.train=16",
    "data.synthetic.test=5",
    "data.synthetic.size=32",
    "data.depth_size=32",
    "data.pose_size=32",
    "data.pose_step_sizes=[32]",
    "model.depth.channels=32",
    "model.depth.head.hidden=32",
    "evaluation.batch_size=2",
    "evaluation.camera.size=32",
    "evaluation.drawn=2",
    "training.batch_size=4",
    "training.num_steps=4",
    "training.num_workers=0",
    "training.device=cpu",
    "training.evaluate_every_steps=null",
    "logging.every_steps=1",
    "logging.use_tensorboard=false",
    "checkpoint.every_steps=2",
    "checkpoint.background=false",
]
POSE = [
    "model.branch.width=4",
    "model.branch.features=16",
    "model.branch.num_heads=2",
    "model.branch.layers=1",
]
# A vision transformer of 25 patches instead of the convolutional backbone.
VIT = [
    "model.depth.encoder=custom",
    "model.depth.freeze_backbone=true",
    "model.depth.save_frozen=false",
    "model.depth.head.places=false",
    "model.depth.map_size=16",
    "model.depth.custom.width=24",
    "model.depth.custom.depth=4",
    "model.depth.custom.features=16",
    "model.depth.custom.channels=[8,8,16,16]",
    "data.depth_size=70",
]


@cache
def composed(stage: str) -> DictConfig:
    """Composing takes most of a second; the overrides of a test are merged into it."""
    extra = POSE if stage == "posenet" else []
    return compose_values([f"recipe=blade_{stage}_tiny", *SHARED, *extra])


def small_config(root: Path, stage: str, *overrides: str) -> Config:
    own = [f"data.root={root / 'people'}", f"output_dir={root / 'runs'}", f"exp_name={stage}"]
    values = OmegaConf.merge(composed(stage), OmegaConf.from_dotlist([*own, *overrides]))
    assert isinstance(values, DictConfig)
    return check(values, ["overt", "torch.optim"])


def small_recipe(root: Path, stage: str, *overrides: str) -> Any:
    return build_recipe(small_config(root, stage, *overrides))


def first_batch(recipe: Any, count: int = 4, start: int = 0) -> Any:
    dataset = recipe.build_dataset()
    rows = range(start, start + count)
    return recipe.collate([dataset.sample(row, sample_rng(0, 0, row)) for row in rows])


def train(root: Path, stage: str, *overrides: str) -> Path:
    """Train in this process (or, among several, as one of them); the run's folder."""
    config = small_config(root, stage, *overrides)
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
    trainer.train()
    del trainer  # before the process group goes
    return config.run_dir


def curve(run: Path) -> list[float]:
    return list(losses_by_step(run).values())


def stage_one(root: Path) -> Path:
    """A checkpoint of DepthNet, made once below `root`."""
    link = root / "runs" / "depthnet" / "checkpoints" / "best"
    if not link.exists():
        train(root, "depthnet")
    return link
