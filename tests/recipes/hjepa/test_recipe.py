"""The H-JEPA recipes through the engine: they compose, learn, split, resume and are scored."""

from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from small_recipes import SMALL_HJEPA, curve, first_batch
from toy_runs import read_rows

from overt.config import load
from overt.data.images.folder import ImageFolder
from overt.data.images.packed import pack_images
from overt.errors import ConfigError
from overt.recipes.hjepa.config import LOSS_TYPES
from overt.recipes.hjepa.data import open_sets


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jepa")


@pytest.mark.parametrize(
    ("name", "width", "depth"),
    [
        ("hjepa", 768, 12),
        ("hjepa_small", 384, 12),
        ("ijepa_vith14", 1280, 32),
        ("ijepa_vitb16", 768, 12),
        ("ijepa_vitl16", 1024, 24),
        ("ijepa_vith16_448", 1280, 32),
        ("ijepa_vitg16", 1408, 40),
    ],
)
def test_the_large_recipes_compose(name: str, width: int, depth: int) -> None:
    config = load([f"recipe={name}", "data.root=somewhere"])
    sizes, is_ijepa = config.settings.model.sizes(), name.startswith("ijepa")
    assert (sizes.width, sizes.depth) == (width, depth)
    assert config.settings.model.patch() == (14 if name == "ijepa_vith14" else 16)
    assert config.training.grad_clip_norm == (None if is_ijepa else 3.0)
    masking = config.settings.data.masking
    assert masking.predict == ("blocks" if is_ijepa else "union")
    assert (masking.style, masking.weigh) == (
        ("official", "blocks") if is_ijepa else ("own", "tokens")
    )
    assert (config.checkpoint.metric_name, config.checkpoint.mode) == ("feature_score", "max")


@pytest.mark.parametrize("name", ["ijepa", "hjepa", "mae", "supervised", "simclr"])
def test_on_cifar_the_defaults_are_what_docs_ssl_measured(name: str) -> None:
    config = load([f"recipe={name}_cifar"])
    contrasts = name == "simclr"
    assert config.training.batch_size == (1024 if contrasts else 256)
    assert config.optimizer.weight_decay == (0.05 if contrasts else 0.2)
    assert config.optimizer.lr == 1e-3
    assert config.settings.model.ema.momentum == 0.996
    assert (config.checkpoint.metric_name, config.checkpoint.mode) == ("feature_score", "max")


REFUSED = {
    "model.embed_dim=48": "embed_dim",
    "model.encoder_type=vit_bass_patch16_224": "did you mean vit_base_patch16_224",
    "model.depth=null": "model.depth",
    "model.num_hierarchies=2": "hierarchy_weights",
    "data.image_size=[18,16]": "not a multiple of the patch size 4",
    "model.pooling=gird": "did you mean grid",
    "loss.type=mse2": "did you mean mse",
    "loss.detach_targets=false": "use_target_encoder",
    "data.masking.mask_scale=[0.3,0.2]": "mask_scale",
    "data.masking.min_keep=0": "min_keep",
    "data.masking.max_keep=1": "max_keep",
    "data.augmentation.crop_scale=[0.0,1.0]": "crop_scale",
    "evaluation.layers=3": "2 blocks",
    "loss.sigreg_test=points": "did you mean reference_points",
    "evaluation.collapse.every_steps=0": "every_steps",
    "model.ema.momentum=1.1": "at most 1",
    "model.predictor.num_heads=3": "multiple",
    "data.masking.style=offical": "did you mean official",
    "data.masking.weigh=block": "did you mean blocks",
    "data.augmentation.blur=1.5": "at most 1",
    "evaluation.linear_probe.label_fractions=[0.1]": "linear_probe.sweep=true",
}


@pytest.mark.parametrize("override", REFUSED)
def test_impossible_values_are_refused_with_the_key(override: str, root: Path) -> None:
    overrides = [override]
    if override == "model.embed_dim=48":
        overrides += ["model.encoder_type=vit_base_patch16_224"]
    if "vit_" in overrides[-1]:
        overrides += [f"model.{key}=null" for key in ("depth", "num_heads", "patch_size")]
    with pytest.raises(ConfigError, match=REFUSED[override].replace("[", r"\[")):
        SMALL_HJEPA.config(root, *overrides)


@pytest.mark.parametrize("other", ["data.augmentation.device=true", "loss.type=cjepa"])
def test_reduced_decoding_is_refused_where_it_has_no_effect(other: str, root: Path) -> None:
    with pytest.raises(ConfigError, match=f"reduced_decode=true has no effect with {other}"):
        SMALL_HJEPA.config(root, "data.reduced_decode=true", other)


@pytest.mark.parametrize("kind", LOSS_TYPES)
def test_every_type_of_loss_trains(kind: str, root: Path) -> None:
    recipe = SMALL_HJEPA.recipe(root, f"loss.type={kind}", "loss.sigreg_num_slices=8")
    torch.manual_seed(0)
    model, batch = recipe.build_model(), first_batch(recipe)
    counts = recipe.counts(batch) | {"samples": torch.tensor(4.0)}
    output = recipe.loss(model, batch, counts, 0)
    assert torch.isfinite(output.total)
    extra = recipe.settings.loss.extra
    assert set(output.losses) == {f"weighted_h{n}" for n in range(3)} | ({extra} - {None})
    assert not output.losses.keys() & output.metrics.keys()
    if extra is not None:
        output.losses[extra].backward()
        assert model.context_encoder.vit.norm.weight.grad is not None
    levels = [output.metrics[f"loss_h{n}"].item() for n in range(3)]
    assert output.metrics["loss_unweighted"].item() == pytest.approx(np.mean(levels))


def test_the_target_moves_once_per_update_and_only_when_it_was_made(root: Path) -> None:
    recipe = SMALL_HJEPA.recipe(root, "model.ema.momentum=0.9", "model.ema.momentum_end=1.0")
    recipe.begin(total_steps=10, steps_per_epoch=5)
    model = recipe.build_model()
    assert model.target_encoder is not None
    name = "vit.blocks.0.attn.qkv.weight"
    context = model.context_encoder.get_parameter(name)
    target = model.target_encoder.get_parameter(name)
    with torch.no_grad():
        context += 1
    start = target.clone()
    recipe.after_step(model, 0, torch.tensor(0.0), {})
    assert torch.equal(target, start)
    recipe.after_step(model, 0, torch.tensor(1.0), {})
    torch.testing.assert_close(target, 0.9 * start + 0.1 * context)
    before = target.clone()
    recipe.after_step(model, 5, torch.tensor(1.0), {})  # half way: 0.95
    torch.testing.assert_close(target, 0.95 * before + 0.05 * context)
    recipe.after_step(model, 10, torch.tensor(1.0), {})
    torch.testing.assert_close(target, 0.95 * before + 0.05 * context)


def test_it_learns_and_is_scored(root: Path) -> None:
    trainer = SMALL_HJEPA.trainer(
        root, "exp_name=learns", "training.num_steps=40", "evaluation.linear_probe.enabled=true",
        "evaluation.linear_probe.epochs=3",
    )  # fmt: skip
    scores = trainer.train()
    losses = curve(root / "runs" / "learns")
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    for name in ("knn_top1", "linear_top1"):
        assert 0 <= scores[name] <= 1
    assert {"val_loss", "val_loss_h1", "context_std", "target_norm", "target_eff_rank"} <= set(
        scores
    )
    row = next(row for row in read_rows(root / "runs" / "learns") if "train/loss_h0" in row)
    assert row["train/target_token_rank"] > 1
    assert row["train/prediction_h2_token_norm"] > 0
    picture = trainer.recipe.visualize(trainer.model)["masks_and_features"]
    assert picture.shape == (3, 4 * 16, 4 * 16)
    assert picture.dtype == torch.uint8


def test_images_come_from_folders_archives_and_packs(root: Path, tmp_path: Path) -> None:
    SMALL_HJEPA.recipe(root).build_dataset()  # writes the folder
    pack_images(ImageFolder(root / "images"), tmp_path / "pack")
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (12, 16, 16), dtype=np.uint8), np.arange(12) % 3
    np.savez(tmp_path / "digits.npz", images=pixels, labels=labels)
    for source, count in (("pack", 24), ("digits.npz", 8)):
        recipe = SMALL_HJEPA.recipe(root, f"data.root={tmp_path / source}", "data.synthetic=null")
        assert len(recipe.build_dataset()) == count  # two thirds are trained on
        assert first_batch(recipe, 2).images.shape == (2, 3, 16, 16)


def test_training_and_held_out_images_are_apart(root: Path) -> None:
    training, held_out = open_sets(SMALL_HJEPA.recipe(root).settings.data)
    assert len(training) + len(held_out) == 36
    assert not set(training.names) & set(held_out.names)
    assert set(held_out.labels) == set(training.labels)


def test_the_tiny_recipe_is_complete_and_small() -> None:
    config = load(["recipe=hjepa_tiny"])
    assert OmegaConf.create(config.text).model.encoder_type == "custom"
    assert config.training.num_steps <= 2500
