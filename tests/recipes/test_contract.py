"""Every shipped class of recipes keeps the contract: `overt.testing.check_recipe` in small.

A tiny YAML file that is new is found by itself; until it has a size below, it runs at its own. The
baselines of CIFAR-10 have classes of their own and no tiny version; the rest differ in sizes.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from overt.config import CONF, load
from overt.data.images.packed import pack_arrays
from overt.testing import check_recipe

TINY = sorted(file.stem for file in (CONF / "recipe").glob("*_tiny.yaml"))
BASELINES = ("mae_cifar", "simclr_cifar", "supervised_cifar")
# Each shares its step, or its data and its way to train, with another one of these.
LONG = {
    "cotracker3_online_tiny", "cotracker3_pseudo_tiny", "blade_pretext_tiny", "mae_cifar",
    "supervised_cifar", "pcdiff_voxels_tiny", "pcdiff_refine_tiny",
}  # fmt: skip

CLIPS = [
    "data.synthetic.count=5",
    "data.synthetic.height=40",
    "data.synthetic.width=40",
    "data.crop_size=[32,32]",
    "data.held_out=1",
]
COTRACKER3 = [
    *CLIPS,
    "data.traj_per_sample=8",
    "model.latent_dim=16",
    "model.corr_radius=1",
    "model.hidden_size=32",
    "model.corr_hidden=32",
    "model.time_depth=1",
    "model.space_depth=1",
    "model.train_iters=2",
    "optimizer.lr=4e-3",
]
PEOPLE = [
    "data.synthetic.train=16",
    "data.synthetic.test=1",
    "data.synthetic.size=32",
    "data.depth_size=32",
    "data.pose_size=32",
    "data.pose_step_sizes=[32]",
    "model.depth.channels=32",
    "model.depth.head.hidden=32",
]
SMALLEST = {
    "cotracker3_tiny": COTRACKER3,
    "cotracker3_online_tiny": COTRACKER3,
    "cotracker3_pseudo_tiny": [*COTRACKER3, "data.unlabeled.random_support=4"],
    "lbm_tiny": [
        *CLIPS,
        "data.synthetic.frames=5",
        "data.synthetic.points=48",
        "data.frames=3",
        "data.points=8",
        "model.input_size=[32,32]",
        "model.embed_dim=16",
        "model.backbone_width=4",
        "model.memory_size=3",
    ],
    "hjepa_tiny": [
        "data.synthetic.classes=4",
        "data.synthetic.per_class=4",
        "data.synthetic.size=16",
        "data.image_size=[16,16]",
        "data.masking.min_keep=2",
        "model.embed_dim=32",
        "model.depth=2",
        "model.num_heads=2",
        "model.predictor.width=16",
        "model.predictor.depth=1",
        "model.predictor.num_heads=2",
    ],
    "pcdiff_voxels_tiny": [
        "data.synthetic.count=2",
        "data.synthetic.side=24",
        "data.synthetic.points=400",
        "data.num_points=160",
        "data.num_implant_points=32",
        "model.width=8",
        "model.grid=8",
        "model.side=16",
        "optimizer.lr=5e-3",
    ],
    "pcdiff_refine_tiny": [
        "data.synthetic.count=2",
        "data.synthetic.side=24",
        "data.synthetic.points=400",
        "data.num_points=160",
        "data.num_implant_points=32",
        "model.levels=2",
        "model.side=16",
        "model.spacing_mm=10.0",
        "optimizer.lr=5e-3",
    ],
    "pcdiff_tiny": [
        "data.synthetic.count=2",
        "data.synthetic.side=24",
        "data.synthetic.points=400",
        "data.num_points=160",
        "data.num_implant_points=32",
        "model.width_multiplier=0.5",
        "model.resolution_multiplier=0.5",
        "model.embed_dim=16",
    ],
    "blade_depthnet_tiny": PEOPLE,
    "blade_posenet_tiny": [
        *PEOPLE,
        "model.branch.width=4",
        "model.branch.features=16",
        "model.branch.num_heads=2",
        "model.branch.layers=1",
        # The base estimator has PoseNet's data and branch, and asks for no stage before it.
        "model.tz_conditioning=false",
    ],
    "blade_pretext_tiny": [
        "data.synthetic.train=8",
        "data.synthetic.test=1",
        "model.depth.custom.width=24",
        "model.depth.custom.depth=4",
        "model.depth.custom.features=16",
        "model.depth.custom.channels=[8,8,16,16]",
    ],
}
SMALL_BASELINE = [
    "data.image_size=[16,16]",
    "data.masking.min_keep=2",
    "model.embed_dim=16",
    "model.depth=2",
    "model.num_heads=2",
    "model.predictor.width=16",
    "model.predictor.depth=1",
    "model.predictor.num_heads=2",
    "model.head.hidden=16",
    "training.batch_size=4",
    "training.num_workers=0",
    "training.precision=fp32",
    "optimizer.lr=5e-3",
    "evaluation.batch_size=4",
    "evaluation.k=1",
    "evaluation.linear_probe.epochs=1",
]
FULL_SIZE = {"plan": "tests/tools/plan/test_full_size.py plans it"}  # with minutes of fake tensors
OPTIONS: dict[str, dict[str, Any]] = {
    "cotracker3_tiny": {"steps": 10, "skip": FULL_SIZE},
    # The sum over its windows falls more slowly.
    "cotracker3_online_tiny": {"steps": 10, "falls_to": 0.95, "skip": FULL_SIZE},
    "cotracker3_pseudo_tiny": {"steps": 10, "skip": FULL_SIZE},
    "lbm_tiny": {"steps": 10, "skip": FULL_SIZE},
    "blade_depthnet_tiny": {"skip": FULL_SIZE},
    "blade_posenet_tiny": {"skip": FULL_SIZE},
    "hjepa_tiny": {"skip": FULL_SIZE},
    "pcdiff_voxels_tiny": {"skip": FULL_SIZE},
    "pcdiff_refine_tiny": {"skip": FULL_SIZE},
    "pcdiff_tiny": {
        "steps": 10,
        "skip": {"plan": "pairs_per_center=null: the step reads a number of pairs"},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


class Steady(torch.nn.Module):
    """A tracker that says that all moves to the right."""

    def forward(
        self, video: torch.Tensor, queries: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tracks = queries[:, None, :, 1:].repeat(1, video.shape[1], 1, 1)
        tracks[..., 0] += torch.arange(video.shape[1])[:, None]
        return tracks, torch.ones_like(tracks[..., 0])


def steady_teacher(folder: Path) -> Path:
    file = folder / "steady.torchscript"
    torch.jit.script(Steady()).save(file)
    return file


def tried(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in names]


@pytest.mark.parametrize("name", tried(TINY))
def test_it_keeps_the_contract(name: str, folder: Path) -> None:
    words = [f"data.root={folder / name}", *SMALLEST.get(name, [])]
    if name == "cotracker3_pseudo_tiny":  # the tracker that ships would take most of the time
        words.append(f"data.unlabeled.teachers=[{{source: {steady_teacher(folder)}}}]")
    config = load([f"recipe={name}", *words])
    report = check_recipe(config, **OPTIONS.get(name, {}))
    skipped = {check for check, outcome in report.items() if outcome != "passed"}
    without_blocks = {"fsdp"} if name == "blade_depthnet_tiny" else set()
    assert skipped == {*OPTIONS.get(name, {}).get("skip", {}), *without_blocks}


@pytest.fixture(scope="module")
def cifar(folder: Path) -> Path:
    """Packs of a few images of waves, each with a rate of its own, across or along."""
    x, y = np.meshgrid(np.arange(16), np.arange(16))
    for part, count in (("train", 12), ("test", 4)):
        labels = np.arange(count) % 2
        waves = [np.sin((x, y)[index % 2] * (0.3 + 0.2 * index)) for index in range(count)]
        images = np.repeat(128 + 100 * np.stack(waves)[..., None], 3, axis=3).astype(np.uint8)
        names = [f"{part}/{index}" for index in range(count)]
        pack_arrays(images, labels, names, ("across", "along"), folder / part)
    return folder


@pytest.mark.parametrize("name", tried(BASELINES))
def test_a_baseline_keeps_the_contract(name: str, cifar: Path) -> None:
    words = [f"data.root={cifar / 'train'}", f"data.val_root={cifar / 'test'}"]
    config = load([f"recipe={name}", *words, *SMALL_BASELINE])
    report = check_recipe(config, skip=FULL_SIZE)
    assert {check for check, outcome in report.items() if outcome != "passed"} == {*FULL_SIZE}
