"""`training.deterministic=true`: the same bits twice, for every recipe, through the engine.

On CUDA that takes all of `overt/ops/dispatch.py`. A CPU has repeatable kernels; there the plain
operations that replace torch's own are put in by force, so that every recipe meets them.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from small_recipes import SMALL
from toy_runs import losses_by_step, same_bits, weights

from overt.config import Config, build_recipe, load
from overt.distributed import init_distributed
from overt.engine.trainer import Trainer
from overt.ops import dispatch

COMMON = [
    "training.deterministic=true",
    "training.num_workers=0",
    "training.evaluate_every_steps=null",
    "training.evaluate_at_start=false",
    "checkpoint.background=false",
    "checkpoint.metric_name=null",
    "logging.every_steps=1",
    "logging.use_tensorboard=false",
]


@dataclass(frozen=True)
class Case:
    recipe: str
    precision: str  # of the large recipe
    small: list[str]  # for a CPU: smaller than tiny
    quick: list[str]  # for a GPU: little data, what the large recipe has and the tiny one has not
    replaced: set[str]  # operations of torch that give way in a training step


PEOPLE = ["data.synthetic.train=16", "data.synthetic.test=4", "training.batch_size=4"]
AUGMENTED = ["data.augment=true", "data.augmentation.jitter_probability=1.0"]
CLIPS = [
    "data.synthetic.count=4",
    "data.held_out=1",
    "evaluation.points_per_sequence=8",
    "data.augment_on_device=true",
    *AUGMENTED,
]
IMAGES = ["data.synthetic.classes=4", "data.synthetic.per_class=9", "training.batch_size=16"]
LEVELS = [
    "model.pooling=sequence",
    "model.projection=predictions",
    "model.fpn.use_fpn=true",
    "model.fpn.feature_dim=24",
]
SKULLS = [
    "data.synthetic.count=2",
    "data.synthetic.side=24",
    "evaluation.steps=2",
    "evaluation.cases=2",
    "training.global_batch_size=4",
    # The levels of the tiny recipe, with a fixed number of pairs: nothing waits for the device.
    "model.down=["
    "{convolutions:{channels:16,count:1,resolution:12},centers:192,radius:0.6,neighbours:24,"
    "widths:[16,32],pairs_per_center:24},"
    "{convolutions:{channels:32,count:1,resolution:6},centers:48,radius:1.2,neighbours:24,"
    "widths:[32,64],pairs_per_center:24},"
    "{convolutions:null,centers:16,radius:2.4,neighbours:24,widths:[64,128],pairs_per_center:24}"
    "]",
]


def small(recipe: str, *words: str) -> list[str]:
    return [*SMALL[recipe].words, *words]


CASES = {
    "blade_depthnet": Case(
        "blade_depthnet_tiny",
        "bf16",
        small("blade_depthnet_tiny"),
        [*PEOPLE, "model.depth.head.dropout=0.1"],
        {"attention"},
    ),
    "blade_posenet": Case(
        "blade_posenet_tiny", "bf16", small("blade_posenet_tiny"), PEOPLE, {"attention", "max_pool"}
    ),
    "blade_pretext": Case(
        "blade_pretext_tiny",
        "bf16",
        small("blade_pretext_tiny", "data.depth_size=70", "training.batch_size=2"),
        PEOPLE,
        {"attention", "resize"},
    ),
    "cotracker3_offline": Case(
        "cotracker3_tiny", "bf16", small("cotracker3_tiny", *AUGMENTED), CLIPS, {"attention"}
    ),
    "cotracker3_online": Case(
        "cotracker3_online_tiny", "bf16", small("cotracker3_online_tiny"), CLIPS, {"attention"}
    ),
    "cotracker3_pseudo": Case(
        "cotracker3_pseudo_tiny", "bf16", small("cotracker3_pseudo_tiny"), [], {"attention"}
    ),
    "hjepa": Case("hjepa_tiny", "bf16", small("hjepa_tiny"), IMAGES, {"attention"}),
    "hjepa_levels": Case(
        "hjepa_tiny",
        "bf16",
        small("hjepa_tiny", *LEVELS),
        [*IMAGES, *LEVELS],
        {"attention", "resize"},
    ),
    "lbm": Case(
        "lbm_tiny",
        "fp16",
        small("lbm_tiny", *AUGMENTED, "training.batch_size=2"),
        [*CLIPS, "training.batch_size=2", "model.dropout=0.1"],
        {"grid_sample", "max_pool"},
    ),
    "pcdiff": Case("pcdiff_tiny", "bf16", small("pcdiff_tiny"), SKULLS, {"attention"}),
    "pcdiff_voxels": Case("pcdiff_voxels_tiny", "fp32", small("pcdiff_voxels_tiny"), SKULLS, set()),
    "pcdiff_refine": Case("pcdiff_refine_tiny", "fp32", small("pcdiff_refine_tiny"), SKULLS, set()),
}

SAME_DATA = {
    "blade_posenet_tiny": "blade_depthnet_tiny",
    "cotracker3_online_tiny": "cotracker3_tiny",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deterministic")


def compose(folder: Path, case: Case, device: str, steps: int, *overrides: str) -> Config:
    return load(
        [
            f"recipe={case.recipe}",
            f"data.root={folder / device / SAME_DATA.get(case.recipe, case.recipe)}",
            f"output_dir={folder / device}",
            *(case.small if device == "cpu" else case.quick),
            *stage_one(folder, case, device),
            *COMMON,
            f"training.device={device}",
            f"training.num_steps={steps}",
            *overrides,
        ]
    )


def train(config: Config, name: str) -> Path:
    """Train a recipe for a few steps, without any scores; the run's folder."""
    config = dataclasses.replace(config, exp_name=name)
    recipe = build_recipe(config)
    recipe.evaluate = lambda *_: {}
    recipe.visualize = lambda *_: {}
    Trainer(config, recipe, init_distributed(config.training.device)).train()
    return config.run_dir


def stage_one(folder: Path, case: Case, device: str) -> list[str]:
    """PoseNet is trained on top of a DepthNet; that of a single step will do."""
    if case.recipe != "blade_posenet_tiny":
        return []
    run = folder / device / "stage_one"
    if not run.exists():
        train(compose(folder, CASES["blade_depthnet"], device, 1), "stage_one")
    return [f"model.depthnet_checkpoint={run / 'checkpoints' / 'step_00000001'}"]


def assert_same_bits(first: Path, second: Path, step: int) -> None:
    """Of the weights, and of the moments: a rate that rises from zero hides other gradients."""
    for part in ("model", "optimizer"):
        one, other = weights(first, step, part), weights(second, step, part)
        different = [key for key in one if not same_bits({key: one[key]}, {key: other[key]})]
        assert not different, f"{len(different)} of {len(one)} tensors, such as {different[0]}"
        assert one.keys() == other.keys()


def test_every_recipe_is_here() -> None:
    import overt

    files = (Path(overt.__file__).parent / "conf" / "recipe").glob("*_tiny.yaml")
    assert {path.stem for path in files} == {case.recipe for case in CASES.values()}


# These have the operations of others.
LONG = {"cotracker3_online", "cotracker3_pseudo", "pcdiff_refine"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in CASES]
)
def test_a_cpu_gives_the_same_bits_and_replacements_the_same_losses(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, asked = CASES[name], set()
    config = compose(folder, case, "cpu", 2)
    first, second = (train(config, f"{name}_{run}") for run in range(2))
    assert_same_bits(first, second, 2)

    def replace_on_a_cpu(_: str, *, deterministic: bool, has_gradient: bool) -> bool:
        return deterministic and has_gradient

    def note(operation: str, *inputs: torch.Tensor) -> bool:
        if decide(operation, *inputs):
            asked.add(operation)
            return True
        return False

    decide = dispatch.replaces
    monkeypatch.setattr(dispatch, "must_replace", replace_on_a_cpu)
    for operation in dispatch.REPLACED_IN_TORCH:
        monkeypatch.setattr(f"overt.ops.{operation}.api.replaces", note)
    expected, found = losses_by_step(first), losses_by_step(train(config, f"{name}_replaced"))
    assert asked == case.replaced
    assert found[1] == pytest.approx(expected[1], rel=1e-5)
    assert found[2] == pytest.approx(expected[2], rel=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["its own", "fp32"])
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_gives_the_same_bits(name: str, precision: str, folder: Path) -> None:
    case = CASES[name]
    chosen = case.precision if precision == "its own" else precision
    config = compose(folder, case, "cuda", 3, f"training.precision={chosen}")
    first, second = (train(config, f"{name}_{chosen}_{run}") for run in range(2))
    assert losses_by_step(first) == losses_by_step(second)
    assert_same_bits(first, second, 3)
