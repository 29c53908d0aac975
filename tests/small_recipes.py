"""Every recipe smaller than tiny, for tests: the one place that says how small.

`SMALL_HJEPA.recipe(folder, "model.depth=3")` is the recipe with its data and runs below `folder`.
"""

import pickle
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from toy_runs import losses_by_step

from overt.config import CONF, Config, build_recipe, check, compose_values
from overt.data.rng import sample_rng
from overt.distributed import World, init_distributed
from overt.engine.trainer import Trainer
from overt.recipes.cotracker3.model import CoTracker3
from overt.recipes.lbm.model import LBM

RUN = (
    "training.num_workers=0",
    "training.device=cpu",
    "training.evaluate_at_start=false",
    "logging.every_steps=1",
    "logging.use_tensorboard=false",
)


@cache
def _composed(words: tuple[str, ...]) -> bytes:
    """Composing takes most of a second; the overrides of a test are merged into a copy."""
    return pickle.dumps(compose_values(list(words)))


@dataclass(frozen=True)
class Small:
    """A recipe in small. Overrides come last; groups such as `evaluation=...` may be among them."""

    name: str  # of its YAML file
    data: str  # folder of its data below the folder of a test
    words: tuple[str, ...]

    def sizes(self, *sections: str) -> list[str]:
        """Return the words of these sections; by default those of data, model and evaluation."""
        chosen = sections or ("data", "model", "evaluation")
        return [word for word in self.words if word.partition(".")[0] in chosen]

    def all_words(self, folder: Path | str) -> list[str]:
        """Return the words of a command line that does what `config` does."""
        places = [f"data.root={Path(folder, self.data)}", f"output_dir={Path(folder, 'runs')}"]
        return [f"recipe={self.name}", *RUN, *self.words, *places]

    def config(self, folder: Path | str, *overrides: str) -> Config:
        groups = [word for word in overrides if (CONF / word.partition("=")[0]).is_dir()]
        values = [word for word in overrides if word not in groups]
        recipe, *own = self.all_words(folder)
        merged: DictConfig = pickle.loads(_composed((recipe, *RUN, *self.words, *groups)))
        merged.merge_with(OmegaConf.from_dotlist([*own[-2:], *values]))
        return check(merged, ["overt", "torch.optim"])

    def recipe(self, folder: Path | str, *overrides: str) -> Any:
        return build_recipe(self.config(folder, *overrides))

    def trainer(
        self, folder: Path | str, *overrides: str, world: World | None = None, dropout: bool = True
    ) -> Trainer:
        """Return a trainer. Which units are dropped depends on how a batch is split."""
        config = self.config(folder, *overrides)
        world = world or init_distributed(config.training.device)
        trainer = Trainer(config, build_recipe(config), world)
        for module in trainer.model.modules() if not dropout else ():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return trainer

    def train(self, folder: Path | str, *overrides: str, dropout: bool = True) -> Path:
        """Train in this process (or, among several, as one of them); return the run's folder."""
        trainer = self.trainer(folder, *overrides, dropout=dropout)
        trainer.train()
        return trainer.config.run_dir


# --- one for each recipe -------------------------------------------------------------------------

_CLIPS = (
    "data.synthetic.count=4",
    "data.synthetic.height=40",
    "data.synthetic.width=40",
    "data.crop_size=[32,32]",
    "data.held_out=1",
)
_COTRACKER3 = (
    *_CLIPS,
    "data.traj_per_sample=8",
    "model.latent_dim=16",
    "model.corr_radius=1",
    "model.hidden_size=32",
    "model.corr_hidden=32",
    "model.train_iters=2",
    "model.eval_iters=2",
    "evaluation.resolution=[32,32]",
    "evaluation.grid_size=2",
    "evaluation.local_grid_size=2",
)
SMALL_COTRACKER3 = Small("cotracker3_tiny", "", _COTRACKER3)
SMALL_COTRACKER3_ONLINE = Small("cotracker3_online_tiny", "", _COTRACKER3)
SMALL_COTRACKER3_PSEUDO = Small(
    "cotracker3_pseudo_tiny", "", (*_COTRACKER3, "data.unlabeled.random_support=4")
)

SMALL_LBM = Small(
    "lbm_tiny",
    "",
    (
        *_CLIPS,
        "data.synthetic.frames=5",
        "data.synthetic.points=48",
        "data.frames=4",
        "data.points=8",
        "model.input_size=[32,32]",
        "model.embed_dim=16",
        "model.backbone_width=4",
        "model.memory_size=3",
        "evaluation.memory_size=3",
        "evaluation.frames=4",
        "training.batch_size=2",
    ),
)

# 16 patches of 4 pixels, two narrow blocks, three levels.
SMALL_HJEPA = Small(
    "hjepa_tiny",
    "images",
    (
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
    ),
)

# Clouds of 160 points of two synthetic skulls.
SMALL_PCDIFF = Small(
    "pcdiff_tiny",
    "skulls",
    (
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
    ),
)

SMALL_VOXELS = Small(
    "pcdiff_voxels_tiny",
    "skulls",
    (
        "data.synthetic.count=2",
        "data.synthetic.side=24",
        "data.synthetic.points=400",
        "data.num_points=320",
        "data.num_implant_points=64",
        "model.width=8",
        "model.grid=8",
        "model.side=24",
        "evaluation.cases=2",
        "training.global_batch_size=4",
        "training.evaluate_every_steps=null",
    ),
)

SMALL_REFINE = Small(
    "pcdiff_refine_tiny",
    "skulls",
    (
        "data.synthetic.count=2",
        "data.synthetic.side=24",
        "data.synthetic.points=400",
        "data.num_points=320",
        "data.num_implant_points=64",
        "model.levels=2",
        "model.side=16",
        "model.spacing_mm=10.0",
        "evaluation.cases=2",
        "training.global_batch_size=4",
        "training.evaluate_every_steps=null",
    ),
)

# Pictures of 32 pixels, narrow networks, a handful of people.
_BLADE = (
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
    "training.evaluate_every_steps=null",
    "checkpoint.every_steps=2",
    "checkpoint.background=false",
)
_BRANCH = (
    "model.branch.width=4",
    "model.branch.features=16",
    "model.branch.num_heads=2",
    "model.branch.layers=1",
)
SMALL_BLADE = {
    stage: Small(f"blade_{stage}_tiny", "people", (*_BLADE, *own, f"exp_name={stage}"))
    for stage, own in {"depthnet": (), "posenet": _BRANCH, "pretext": ()}.items()
}
# DepthNet on a vision transformer of 25 patches instead of the convolutional backbone.
BLADE_VIT = (
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
)

SMALL = {
    small.name: small
    for small in (
        SMALL_COTRACKER3,
        SMALL_COTRACKER3_ONLINE,
        SMALL_COTRACKER3_PSEUDO,
        SMALL_LBM,
        SMALL_HJEPA,
        SMALL_PCDIFF,
        SMALL_VOXELS,
        SMALL_REFINE,
        *SMALL_BLADE.values(),
    )
}

# One global batch, to be split in any way.
HJEPA_SPLIT = (
    "training.global_batch_size=8",
    "training.num_steps=6",
    "training.drop_last=false",
    "training.evaluate_every_steps=null",
    "evaluation.collapse.every_steps=null",
)
PCDIFF_SPLIT = (
    "training.global_batch_size=4",
    "training.num_steps=4",
    "training.evaluate_every_steps=null",
    "checkpoint.metric_name=null",
)


# --- what tests ask of any of them ---------------------------------------------------------------


def first_batch(recipe: Any, count: int = 4, start: int = 0) -> Any:
    """Return the samples from `start` on as a batch."""
    dataset = recipe.build_dataset()
    indices = range(start, start + count)
    return recipe.collate([dataset.sample(index, sample_rng(0, 0, index)) for index in indices])


def curve(run: Path) -> list[float]:
    """Return the losses of a run in the order of its steps."""
    return [loss for _, loss in sorted(losses_by_step(run).items())]


def stage_one(folder: Path) -> Path:
    """Return a checkpoint of BLADE's DepthNet, made once below `folder`."""
    link = folder / "runs" / "depthnet" / "checkpoints" / "best"
    if not link.exists():
        SMALL_BLADE["depthnet"].train(folder)
    return link


# --- models without a configuration --------------------------------------------------------------

Tracker = TypeVar("Tracker", bound=CoTracker3)
TRACKER_SIZES = {
    "window_len": 6,
    "corr_radius": 1,
    "corr_levels": 2,
    "num_virtual_tracks": 4,
    "model_resolution": (320, 400),  # with a smaller one rounding grows from window to window
    "latent_dim": 16,
    "hidden_size": 32,
    "num_heads": 4,
    "time_depth": 2,
    "space_depth": 1,
    "mlp_ratio": 2.0,
    "corr_hidden": 24,
    "corr_out": 16,
}


def small_tracker(model_class: type[Tracker], **changed: object) -> Tracker:
    """Return a CoTracker3 whose numbers nevertheless move."""
    torch.manual_seed(0)
    model = model_class(**(TRACKER_SIZES | changed))
    # The heads start almost at zero; larger, the iterations have something to disagree about.
    with torch.no_grad():
        model.updateformer.flow_head.weight.mul_(20)
        model.updateformer.vis_conf_head.weight.mul_(20)
    return model.eval()


def tracker_inputs(batch: int = 2, frames: int = 6, points: int = 5) -> tuple[Tensor, Tensor]:
    """Return a video of noise (B, T, 3, 32, 40) and queries in all its frames, (B, N, 3)."""
    generator = torch.Generator().manual_seed(1)
    video = torch.randint(0, 256, (batch, frames, 3, 32, 40), generator=generator)
    queries = torch.rand(batch, points, 3, generator=generator)
    queries *= torch.tensor([frames, 39.0, 31.0])
    queries[..., 0].floor_()
    return video.to(torch.uint8), queries


def small_lbm(**changed: Any) -> LBM:
    """Return an LBM of three levels and three remembered frames."""
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
    return LBM(**(sizes | changed))
