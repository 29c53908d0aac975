"""LBM on clips rendered from photographs: its pixel convention, its loss, its refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_recipes import Small, first_batch
from toy_runs import losses_by_step

from overt.config import build_recipe, load
from overt.data.tracking.procedural import Seeds
from overt.data.tracking.procedural_tapvid import write_photograph_videos
from overt.errors import ConfigError
from overt.recipes.lbm.data import evaluation_clips
from overt.recipes.lbm.recipe import LBMRecipe
from overt.tools.plan.engine_step import EngineStep
from tests.data.tracking.procedural_values import small_settings

SMALL = Small(
    "lbm_photographs",
    "none",
    (
        "data.crop_size=[32,32]",
        "data.frames=4",
        "data.points=8",
        "data.procedural.samples=16",
        "data.procedural.layers=4",
        "data.procedural.texture_size=32",
        "data.procedural.made_textures=3",
        "model.input_size=[32,32]",
        "model.embed_dim=16",
        "model.backbone_width=4",
        "model.memory_size=3",
        "evaluation.memory_size=3",
        "training.batch_size=2",
        "training.precision=fp32",
    ),
)


FRAMES = 2  # of the test set


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pictures, and a test set of one video made from them."""
    folder = tmp_path_factory.mktemp("photographs")
    (folder / "pictures").mkdir()
    for index in range(2):
        noise = np.random.default_rng(index).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / "pictures" / f"{index}.png")
    scene = small_settings(first_frame=1.0, made_textures=0)
    write_photograph_videos(
        folder / "moving", folder / "pictures", scene, videos=1, frames=FRAMES, points=8
    )
    return folder


def words(folder: Path) -> list[str]:
    return [
        f"data.textures={folder / 'pictures'}",
        f"evaluation.dataset_root={folder / 'moving'}",
    ]


def test_tracks_are_those_that_the_evaluation_reads(folder: Path) -> None:
    """The same scene, rendered for training, and written as a test set and read again."""
    recipe: LBMRecipe = SMALL.recipe(
        folder,
        *words(folder),
        "data.crop_size=[256,256]",
        f"data.frames={FRAMES}",
        "data.procedural.made_textures=0",
        "data.procedural.first_frame=1.0",
    )
    batch = recipe.on_device(first_batch(recipe, 1))
    read = evaluation_clips(recipe.settings).sample(0)
    assert torch.equal(batch.video[0], read.video)
    torch.testing.assert_close(batch.tracks[0], read.tracks, atol=1e-3, rtol=0)
    torch.testing.assert_close(batch.queries[0], read.queries, atol=1e-3, rtol=0)


def test_what_is_far_outside_is_not_supervised(tmp_path: Path) -> None:
    recipe: LBMRecipe = SMALL.recipe(tmp_path)
    batch = recipe.on_device(first_batch(recipe, 2))
    assert batch.valid.shape == batch.visibility.shape  # (B, T, N)
    batch.valid[:, 2] = False
    supervised = recipe.targets(batch).supervised
    assert not supervised[:, 2].any()
    assert supervised[:, 3].any()


def test_groups_of_clips_add_up_to_the_loss_of_the_batch(tmp_path: Path) -> None:
    """Counts are taken before clips are rendered. In evaluation mode, without batch statistics."""
    recipe: LBMRecipe = SMALL.recipe(tmp_path, "loss.clips_per_mean=1")
    model = recipe.build_model().eval()
    counts = recipe.counts(first_batch(recipe, 3))

    def loss(seeds: Seeds) -> dict[str, torch.Tensor]:
        output = recipe.loss(model, recipe.on_device(seeds), counts, 0)
        return {**output.losses, **output.metrics}

    whole = loss(first_batch(recipe, 3))
    parts = [loss(first_batch(recipe, 1, start)) for start in range(3)]
    for name, value in whole.items():
        total = sum(part[name] for part in parts)
        torch.testing.assert_close(total, value, atol=1e-5, rtol=1e-4)
    assert whole["visible_error_px"] > 0


def test_it_trains_and_is_scored(folder: Path, tmp_path: Path) -> None:
    config = ["training.num_steps=2", "training.evaluate_every_steps=2"]
    trainer = SMALL.trainer(tmp_path, *words(folder), *config)
    trainer.train()
    losses = losses_by_step(trainer.config.run_dir)
    assert np.isfinite(list(losses.values())).all()
    assert (trainer.config.run_dir / "checkpoints" / "best").exists()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("loss.clips_per_mean=null", "loss.clips_per_mean to a number"),
        ("data.points=1001", "data.points=1001"),
        ("data.augment=true", "data.augment=true has no effect on procedural clips"),
        ("data.crop_size=[36,32]", "multiples of 8"),
    ],
)
def test_settings_without_effect_or_sense_are_refused(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(["recipe=lbm_photographs", word])


def test_textures_without_rendered_clips_are_refused() -> None:
    words = ["recipe=lbm_photographs", "data.root=videos", "data.procedural=null"]
    with pytest.raises(ConfigError, match=r"data\.textures=photographs has no effect"):
        load([*words, "data.textures=photographs"])


def test_a_plan_renders_the_clips_too() -> None:
    config = SMALL.config("absent", "data.frames=2", "model.num_layers=2")
    recipe = build_recipe(config)
    memory = EngineStep(config, recipe, checkpointing=False).run(recipe.example_batch(1), 1)
    assert memory.flops > 0
    assert memory.activations > 0
    assert memory.peak > memory.parameters + memory.frozen + memory.optimizer
