"""BLADE's recipes through the engine: they compose, learn, split, resume and are scored."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_recipes import SMALL_BLADE, first_batch, stage_one

from overt.config import load
from overt.distributed import World, init_distributed
from overt.errors import ConfigError

STAGES = ("depthnet", "posenet", "pretext")
ALONE = World(0, 1, 0, torch.device("cpu"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blade")
    stage_one(folder)
    return folder


def named(root: Path, stage: str) -> list[str]:
    return [f"model.depthnet_checkpoint={stage_one(root)}"] if stage == "posenet" else []


def test_the_large_recipes_have_the_published_numbers() -> None:
    depth = load(["recipe=blade_depthnet", "data.root=somewhere"])
    assert depth.settings.model.depth.backbone().width == 1024
    assert depth.settings.model.depth.freeze_backbone
    assert depth.settings.data.depth_size == 518
    shares = {one.name: one.weight for one in depth.settings.data.sources}
    assert shares == {"pdhuman": 0.145, "humman": 0.14, "h36m": 0.215, "bedlamcc": 0.5}
    assert (depth.optimizer.lr, depth.optimizer.weight_decay) == (1e-4, 0.0)
    pose = load(["recipe=blade_posenet", "data.root=somewhere"])
    assert pose.optimizer.lr == 2e-4
    assert [one.weight for one in pose.settings.data.sources] == [0.435, 0.436, 0.129]
    assert pose.settings.loss.vert_weight == 5.0
    assert load(["recipe=blade_pretext"]).settings.data.synthetic.depth_maps


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["recipe=blade_pretext"], "anny"),
        (["recipe=blade_depthnet", "data=blade_people"], "anny"),
        (["recipe=blade_posenet", "data=blade_people", "model.body.model=capsule"], "capsule"),
        *([[f"recipe=blade_{stage}_tiny"], "capsule"] for stage in STAGES),
        (["recipe=blade_depthnet_tiny", "model.body.model=anny"], "anny"),
    ],
)
def test_people_are_rendered_with_the_body_of_the_model(words: list[str], body: str) -> None:
    settings = load(words).settings
    assert settings.data.synthetic.body == settings.model.body.model == body


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.depth.encoder=vitx", r"model\.depth\.encoder=vitx.*did you mean vit"),
        ("evaluation.dataset=pdhuman_p6", r"did you mean pdhuman_p5"),
        ("model.depth.channels=30", "not a multiple of"),
        ("data.limb_keypoints=[1,2]", "give twelve"),
        ("data.pose_side=[1.0]", r"pose_side=\[1\.0\]; give the smallest factor, above 0"),
        ("data.pose_side=[-1.0,0.5]", "above 0"),
        ("data.pose_side=[0,0]", "above 0"),
        ("data.pose_step_sizes=[]", r"pose_step_sizes is empty"),
        ("data.pose_step_sizes=[0]", r"pose_step_sizes=0; it must be at least 1"),
        ("data.pose_augmentation.scale=1.5", r"pose_augmentation\.scale=1\.5; .* below 1"),
        ("data.depth_augmentation.mirror=2", r"depth_augmentation\.mirror=2.* at most 1"),
        ("data.depth_augmentation.shift=-0.1", r"depth_augmentation\.shift=-0\.1; .* at least 0"),
    ],
)
def test_impossible_settings_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(["recipe=blade_depthnet", "data.root=x", override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("taps=[0,1,2,9]", r"custom\.taps=\[0, 1, 2, 9\]; with .*depth=4 its blocks are 0 to 3"),
        ("taps=[0,1,2]", "four taps"),
        ("num_heads=5", r"custom\.width=96 is not a multiple of .*custom\.num_heads=5"),
        ("features=1", r"custom\.features=1; it must be at least 2"),
        ("channels=[0,1,2,3]", r"custom\.channels=0; it must be at least 1"),
    ],
)
def test_impossible_sizes_of_a_custom_encoder_are_refused(override: str, message: str) -> None:
    words = ["recipe=blade_depthnet_tiny", "data.root=x", "model.depth.encoder=custom"]
    with pytest.raises(ConfigError, match=message):
        load([*words, f"model.depth.custom.{override}"])


@pytest.mark.parametrize("stage", STAGES[:2])
def test_shares_of_parts_add_up_to_the_whole(root: Path, stage: str) -> None:
    recipe = SMALL_BLADE[stage].recipe(root, *named(root, stage))
    model = recipe.build_model().eval()  # batch norm as a fixed map
    batches = [first_batch(recipe, count, start) for count, start in ((8, 0), (3, 0), (5, 3))]
    counts = {"samples": torch.tensor(8.0)}
    counts |= recipe.counts(batches[0]) if hasattr(recipe, "counts") else {}
    whole, first, second = (recipe.loss(model, batch, counts, 0) for batch in batches)
    for name, term in whole.losses.items():
        torch.testing.assert_close(first.losses[name] + second.losses[name], term)
    for name, value in whole.metrics.items():
        torch.testing.assert_close(first.metrics[name] + second.metrics[name], value)


def rows(root: Path, stage: str, *overrides: str) -> list[dict[str, Any]]:
    world = init_distributed("cpu")
    torch.manual_seed(0)
    recipe = SMALL_BLADE[stage].recipe(root, *named(root, stage), *overrides)
    with torch.inference_mode():
        return recipe.evaluate_rows(recipe.build_model().eval(), world)


@pytest.mark.parametrize("stage", STAGES[:2])
def test_scores_do_not_depend_on_the_number_of_processes(
    root: Path, stage: str, run_processes: Callable[..., list[Any]]
) -> None:
    alone = rows(root, stage)
    assert len(alone) == 5
    assert alone[0]["name"] == "imgs/000000.jpg"
    for part in run_processes(rows, 2, root, stage):
        for found, expected in zip(part, alone, strict=True):
            assert found.pop("name") == expected["name"]
            numbers = {name: value for name, value in expected.items() if name != "name"}
            assert found == pytest.approx(numbers, rel=1e-5, nan_ok=True)


@pytest.mark.parametrize("stage", STAGES[:2])
def test_pictures_are_drawn(root: Path, stage: str) -> None:
    recipe = SMALL_BLADE[stage].recipe(root, *named(root, stage))
    with torch.inference_mode():
        pictures = recipe.visualize(recipe.build_model().eval())
    (picture,) = pictures.values()
    assert picture.dtype == torch.uint8
    assert picture.shape[0] == 3


def test_every_recipe_says_what_it_runs_on(root: Path) -> None:
    config = SMALL_BLADE["depthnet"].config(root)
    assert config.recipe.name == "blade_depthnet_tiny"
    assert config.settings.evaluation.dataset == "people_test"
