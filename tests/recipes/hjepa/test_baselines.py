"""SimCLR, MAE and labels under the roof of H-JEPA: they learn, split, and are scored alike."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_recipes import SMALL_HJEPA, curve, first_batch
from toy_runs import weights

from overt.errors import ConfigError
from overt.recipes.hjepa.baselines import MAERecipe, SimCLRRecipe, SupervisedRecipe

TARGET = "recipe._target_=overt.recipes.hjepa.baselines."
METHODS = {
    "simclr": (f"{TARGET}SimCLRRecipe", "loss.type=cjepa", "loss.contrastive_weight=1"),
    "supervised": (f"{TARGET}SupervisedRecipe", "model.head.width=4"),
    "mae": (
        f"{TARGET}MAERecipe",
        "data.masking.kind=random",
        "data.masking.mask_scale=[0.7,0.8]",
    ),
}
ALONE = (
    "model.use_target_encoder=false", "model.head.hidden=16", "data.augmentation.device=true",
    "model.num_hierarchies=1", "loss.hierarchy_weights=[1.0]", "training.evaluate_every_steps=null",
    "evaluation.collapse.every_steps=null", "training.batch_size=null", "training.drop_last=false",
    "training.global_batch_size=8", "training.num_steps=3",
    "evaluation.linear_probe.enabled=true", "evaluation.linear_probe.sweep=true",
    "evaluation.linear_probe.epochs=2", "evaluation.linear_probe.label_fractions=[0.5]",
    "evaluation.linear_probe.views=1",
    "evaluation.further_k=[1]",
)  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("baselines")


@pytest.mark.parametrize("method", METHODS)
def test_split_batches_train_the_same_weights_and_are_scored(method: str, root: Path) -> None:
    """One batch of 8 and two of 4 are one step, also where samples are compared."""
    words = (*ALONE, *METHODS[method])
    trainer = SMALL_HJEPA.trainer(root, *words, f"exp_name={method}_whole", "training.batch_size=8")
    scores, whole = trainer.train(), trainer.config.run_dir
    assert {"knn_top1", "knn_top1_k1", "linear_top1", "linear_top1_0.5"} <= scores.keys()
    assert ("classifier_top1" in scores) == (method == "supervised")
    split = SMALL_HJEPA.train(root, *words, f"exp_name={method}_split", "training.batch_size=4")
    assert curve(whole) == pytest.approx(curve(split), rel=1e-4)
    other = weights(split, 3)
    for name, value in weights(whole, 3).items():
        if name.endswith("qkv.bias"):  # that of the keys has no gradient but rounding
            continue
        assert torch.allclose(value, other[name], atol=1e-4, equal_nan=True), name


def test_simclr_sees_two_views_of_each_image(root: Path) -> None:
    recipe = SMALL_HJEPA.recipe(root, *ALONE, *METHODS["simclr"])
    assert isinstance(recipe, SimCLRRecipe)
    raw = first_batch(recipe)
    batch = recipe.on_device(raw)
    assert raw.views.shape == (4, 2, 15)
    assert batch.views is None
    assert batch.images.shape == batch.second.shape == (4, 3, 16, 16)
    on_host = SMALL_HJEPA.recipe(root, *ALONE, *METHODS["simclr"], "data.augmentation.device=false")
    same = first_batch(on_host)
    assert (same.images.int() - batch.images.int()).abs().max() <= 2
    assert (same.second.int() - batch.second.int()).abs().max() <= 2


def test_mae_predicts_normalized_pixels_of_hidden_patches(root: Path) -> None:
    recipe = SMALL_HJEPA.recipe(root, *ALONE, *METHODS["mae"], "data.augmentation.device=false")
    assert isinstance(recipe, MAERecipe)
    model, batch = recipe.build_model(), first_batch(recipe)
    output = model(batch.images, batch.layout)
    hidden = len(batch.layout.prediction.positions)
    assert 0.65 * 64 < hidden < 0.85 * 64
    assert output.targets[0].shape == output.predictions[0].shape == (hidden, 48)
    assert output.targets[0].mean(1).abs().max() < 1e-5
    assert torch.allclose(output.targets[0].std(1, correction=0), torch.ones(hidden), atol=0.05)
    place = int(batch.layout.prediction.positions[0])
    row, column = divmod(place, 4)
    pixels = model.pixels(batch.images)[0, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
    expected = torch.nn.functional.layer_norm(pixels.flatten(), (48,))
    assert torch.allclose(output.targets[0][0], expected, atol=1e-5)


def test_labels_are_learned(root: Path) -> None:
    recipe = SMALL_HJEPA.recipe(root, *ALONE, *METHODS["supervised"])
    assert isinstance(recipe, SupervisedRecipe)
    model, batch = recipe.build_model(), recipe.on_device(first_batch(recipe))
    output = recipe.loss(model, batch, {"samples": torch.tensor(4.0)}, 0)
    assert output.total > 0
    assert 0 <= output.metrics["accuracy"] <= 1


def test_a_classifier_decodes_no_more_than_its_view_needs(tmp_path: Path) -> None:
    """The same view and label, up to what the decoder rounds."""
    coarse = np.random.default_rng(0).integers(0, 256, (2, 2, 2, 3), dtype=np.uint8)
    for number in range(2):
        (tmp_path / f"images/{number}").mkdir(parents=True)
        photograph = Image.fromarray(coarse[number]).resize((257, 257), Image.Resampling.BICUBIC)
        photograph.save(tmp_path / f"images/{number}/large.jpg", quality=95)
    own = (*METHODS["supervised"], "data.augmentation.device=false", "data.synthetic=null")
    own += ("data.held_out=0", "data.augmentation.color_jitter=0")
    batches = []
    for reduced in ("false", "true"):
        words = (*own, f"data.reduced_decode={reduced}")
        batches.append(first_batch(SMALL_HJEPA.recipe(tmp_path, *ALONE, *words), count=2))
    whole, small = batches
    assert whole.labels.tolist() == small.labels.tolist() == [0, 1]
    assert not torch.equal(whole.images, small.images)
    assert (whole.images.float() - small.images.float()).abs().mean() < 5


def test_reduced_decoding_is_refused_with_two_views(root: Path) -> None:
    own = ("data.augmentation.device=false", "data.reduced_decode=true", "loss.type=mse")
    with pytest.raises(ConfigError, match="no effect with two views"):
        SMALL_HJEPA.recipe(root, *ALONE, *METHODS["simclr"], *own)


@pytest.mark.parametrize(
    ("method", "words", "message"),
    [
        ("simclr", ("loss.type=mse",), "loss.type=mse, but SimCLR compares two views"),
        ("simclr", ("loss.type=combined",), "set loss.type=cjepa"),
        ("mae", ("model.projection=predictions",), "model.projection=predictions is for targets"),
        ("mae", ("model.projection=shared",), "set model.projection=none"),
        (
            "mae",
            ("model.predictor.kind=reference", "model.predictor.width=null"),
            "set model.predictor.kind=narrow",
        ),
    ],
)
def test_parts_of_other_methods_are_refused(
    method: str, words: tuple[str, ...], message: str, root: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        SMALL_HJEPA.recipe(root, *ALONE, *METHODS[method], *words)
