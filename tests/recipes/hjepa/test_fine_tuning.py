"""Fine-tuning: weights of any method, rates that fall with depth, few labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_recipes import SMALL_HJEPA
from torch import nn

from overt.checkpoint.weights import load_initial
from overt.errors import CheckpointError, ConfigError, DataError
from overt.recipes.hjepa.baselines import Classifier

CLASSIFIER = (
    "recipe._target_=overt.recipes.hjepa.baselines.SupervisedRecipe",
    "model.use_target_encoder=false", "model.num_hierarchies=1", "loss.hierarchy_weights=[1.0]",
    "model.head.width=4", "model.head.layer_decay=0.5", "evaluation.frozen_features=false",
    "checkpoint.metric_name=classifier_top1", "training.evaluate_every_steps=null",
)  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fine_tuning")


def build(root: Path, *words: str) -> Classifier:
    model = SMALL_HJEPA.recipe(root, *CLASSIFIER, *words).build_model()
    assert isinstance(model, Classifier)
    return model


def saved(model: nn.Module, path: Path) -> Path:
    torch.save(model.state_dict(), path)
    return path


def test_a_classifier_starts_from_the_encoder_that_is_scored(root: Path, tmp_path: Path) -> None:
    pretrained = SMALL_HJEPA.recipe(root).build_model()
    with torch.no_grad():
        for weight in pretrained.target_encoder.vit.blocks.parameters():
            weight.add_(1)  # both encoders start equal
    model = build(root)
    report = load_initial(saved(pretrained, tmp_path / "hjepa.pth"), model, optional=("head.",))
    assert {key.partition(".")[0] for key in report.missing} == {"head"}
    expected = pretrained.target_encoder.state_dict()
    for name, value in model.context_encoder.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_a_classifier_is_loaded_with_its_head_unless_the_classes_are_others(
    root: Path, tmp_path: Path
) -> None:
    trained = build(root)
    file, same, other = (
        saved(trained, tmp_path / "x.pth"),
        build(root),
        build(root, "model.head.width=7"),
    )
    load_initial(file, same)
    assert torch.equal(same.head.weight, trained.head.weight)
    load_initial(file, other, optional=("head.",))
    for model in (same, other):
        vit, expected = model.context_encoder.vit, trained.context_encoder.vit
        assert torch.equal(vit.norm.weight, expected.norm.weight)
        assert torch.equal(vit.blocks[0].attn.qkv.weight, expected.blocks[0].attn.qkv.weight)


@pytest.mark.parametrize("prefix", ["target_encoder.", "context_encoder.vit.", ""])
def test_an_encoder_with_more_blocks_is_refused(prefix: str, root: Path, tmp_path: Path) -> None:
    deep = SMALL_HJEPA.recipe(root, "model.depth=3").build_model().context_encoder.vit.state_dict()
    torch.save({prefix + key: value for key, value in deep.items()}, tmp_path / "deep.pth")
    with pytest.raises(CheckpointError, match=r"has 3 blocks, the model's has 2.*model.depth=3"):
        load_initial(tmp_path / "deep.pth", build(root), optional=("head.",))


def test_tensors_of_an_encoder_that_are_not_used_are_listed(root: Path, tmp_path: Path) -> None:
    pretrained = SMALL_HJEPA.recipe(root).build_model()
    unused = {
        f"{encoder}.vit.blocks.0.attn.gate": torch.ones(2)
        for encoder in ("context_encoder", "target_encoder")
    }
    torch.save(pretrained.state_dict() | unused, tmp_path / "gates.pth")
    report = load_initial(tmp_path / "gates.pth", build(root), optional=("head.",))
    assert unused.keys() <= set(report.unexpected)


@pytest.mark.parametrize(
    "source", [{"num_heads": 4}, {"encoder_type": "vit_tiny_patch16_224", "num_heads": None}]
)
@pytest.mark.parametrize(
    ("method", "loss"),
    [
        ("baselines.SupervisedRecipe", []),
        ("baselines.SimCLRRecipe", ["loss.type=cjepa"]),
        ("recipe.HJEPARecipe", []),
    ],
)
def test_an_encoder_with_other_heads_is_refused(
    method: str, loss: list[str], source: dict[str, Any], root: Path
) -> None:
    target = f"recipe._target_=overt.recipes.hjepa.{method}"
    model = SMALL_HJEPA.recipe(root, *CLASSIFIER[1:4], target, *loss).build_model()
    heads = source["num_heads"] or 3
    with pytest.raises(CheckpointError, match=rf"with {heads} attention heads, the model's has 2"):
        model.adapt_tensors(model.state_dict(), {"model": source})
    model.adapt_tensors(model.state_dict(), {"model": {"num_heads": 2}})


def test_rates_halve_from_layer_to_layer(root: Path) -> None:
    recipe = SMALL_HJEPA.recipe(root, *CLASSIFIER)
    model = recipe.build_model()
    groups = recipe.parameter_groups(model)
    rates = {name: group["lr_scale"] for group in groups for name, _ in group["params"]}
    assert rates.keys() == {
        name for name, weight in model.named_parameters() if weight.requires_grad
    }
    vit = "context_encoder.vit."
    assert rates["head.weight"] == rates[f"{vit}norm.bias"] == groups[0]["lr_scale"] == 1
    assert rates[f"{vit}blocks.1.mlp.fc1.weight"] == 0.5
    assert rates[f"{vit}blocks.0.mlp.fc1.weight"] == 0.25
    assert rates[f"{vit}patch_embed.proj.weight"] == 0.125
    still = {name for group in groups if "weight_decay" in group for name, _ in group["params"]}
    assert {"head.bias", f"{vit}norm.weight"} <= still
    assert "head.weight" not in still


def test_few_labels_are_of_every_class(root: Path) -> None:
    recipe = SMALL_HJEPA.recipe(root, *CLASSIFIER, "data.label_fraction=0.3")
    images = recipe.build_dataset().images
    assert len(images) == round(0.3 * len(recipe.sets[0]))
    counts = np.bincount(images.labels, minlength=4)
    assert counts.max() - counts.min() <= 1
    fewest = SMALL_HJEPA.recipe(root, *CLASSIFIER, "data.label_fraction=0.001").build_dataset()
    assert sorted(fewest.images.labels) == [0, 1, 2, 3]


@pytest.mark.parametrize("target", ["baselines.SimCLRRecipe", "recipe.HJEPARecipe"])
def test_a_fraction_of_labels_is_refused_where_none_are_learned(target: str, root: Path) -> None:
    words = (f"recipe._target_=overt.recipes.hjepa.{target}", "data.label_fraction=0.5")
    with pytest.raises(ConfigError, match=r"data.label_fraction=0.5 has no effect"):
        SMALL_HJEPA.recipe(root, *words)


def test_a_head_too_small_and_missing_classes_are_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"head.width=3.*4 classes; set model.head.width=4"):
        SMALL_HJEPA.recipe(root, *CLASSIFIER, "model.head.width=3").build_dataset()
    with pytest.raises(DataError, match="has no classes"):
        SMALL_HJEPA.recipe(root, *CLASSIFIER, "data.labeled=false").build_dataset()


def test_one_run_from_a_checkpoint_to_its_accuracy(root: Path) -> None:
    first = SMALL_HJEPA.train(
        root, "exp_name=pretrained", "training.num_steps=2", "training.evaluate_every_steps=null"
    )
    trainer = SMALL_HJEPA.trainer(
        root, *CLASSIFIER, "exp_name=tuned", "training.num_steps=2",
        f"checkpoint.init_from={first / 'checkpoints' / 'latest'}",
    )  # fmt: skip
    assert trainer.train().keys() == {"classifier_top1"}
