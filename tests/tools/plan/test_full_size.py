"""Every recipe takes its own example batch, on tensors without memory; also at published sizes."""

import pytest
from small_recipes import SMALL

from overt.config import CONF, Config, build_recipe, load
from overt.tools.plan.engine_step import EngineStep, StepMemory

# Recipes that differ from another one of these in sizes alone.
RESIZED = {
    "ijepa_vitl16", "ijepa_vith16_448", "ijepa_vitg16", "hjepa_cifar", "supervised_cifar",
    "finetune_cifar",
    "pcdiff_large", "pcdiff_large_sparse", "pcdiff_medium", "pcdiff_published",
}  # fmt: skip
# Recipes whose step another one of these has too, with other data or another loss.
SAME_STEP = {
    "cotracker3_pseudo", "cotracker3_pseudo_online", "cotracker3_pseudo_small", "cotracker3_small",
    "cotracker3_online", "hjepa_small", "hjepa_digits", "ijepa_cifar", "blade_pretext",
    "cjepa_cifar", "pcdiff_voxels_medium", "blade_posenet", "lbm_photographs",
}  # fmt: skip
# Recipes of which `test_a_small_step` shows the same step in small.
SHOWN_SMALL = {
    "hjepa", "ijepa_vitb16", "lbm", "pcdiff", "pcdiff_voxels", "pcdiff_refine", "blade_depthnet",
}  # fmt: skip
SMALL_STEPS = {
    "hjepa_tiny": [],
    "lbm_tiny": ["data.frames=2"],
    "pcdiff_voxels_tiny": [],
    "pcdiff_refine_tiny": [],
    "blade_depthnet_tiny": [],
}
RECIPES = sorted({file.stem for file in (CONF / "recipe").glob("*.yaml")} - RESIZED)
# Short clips and a single iteration: the same work over and over needs no second look.
SHORT = {
    "cotracker3_offline": ["data.sequence_len=3", "data.random_sequence_len=2"],
    "cotracker3_online": ["data.sequence_len=8", "model.window_len=8"],
    "cotracker3_small": ["data.procedural.layers=2"],
    "lbm": ["data.frames=2"],
    "lbm_photographs": ["data.frames=12"],
}
# Built with real weights before these are made fake.
TOO_LARGE = {"ijepa_vith14": "630 M weights and their average take 5 GB of this machine"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in SAME_STEP | SHOWN_SMALL else ())
        for name in RECIPES
        if not name.endswith("_tiny")
    ],
)
def test_the_step_takes_the_example_batch(name: str) -> None:
    if name in TOO_LARGE:
        pytest.skip(TOO_LARGE[name])
    once = ["model.train_iters=1"] if "cotracker3" in name else []
    memory = step(load([f"recipe={name}", "data.root=absent", *SHORT.get(name, []), *once]))
    assert memory.batch > 0


@pytest.mark.parametrize("name", SMALL_STEPS)
def test_a_small_step(name: str) -> None:
    step(SMALL[name].config("absent", *SMALL_STEPS[name]))


def step(config: Config) -> StepMemory:
    recipe = build_recipe(config)
    memory = EngineStep(config, recipe, checkpointing=False).run(recipe.example_batch(1), 1)
    assert memory.flops > 0
    assert memory.peak > memory.parameters + memory.frozen + memory.optimizer
    return memory
