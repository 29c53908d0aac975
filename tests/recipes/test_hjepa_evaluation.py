"""Scores of frozen features: probes, layers, files, and the same on any number of processes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_jepa import first_batch, small_recipe

from overt.distributed import init_distributed
from overt.metrics.features import load_features
from overt.recipes.hjepa.data import open_sets
from overt.recipes.hjepa.evaluation import pooled_features


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jepa")


def scores_here(root: Path, *overrides: str) -> dict[str, float]:
    recipe = small_recipe(root, "evaluation.batch_size=5", *overrides)
    world = init_distributed("cpu")
    torch.manual_seed(0)
    with torch.inference_mode():
        return recipe.evaluate(recipe.build_model().eval(), world)


def test_scores_do_not_depend_on_the_number_of_processes(
    run_processes: Callable[..., list[dict[str, float]]], root: Path
) -> None:
    probes = [
        "evaluation.linear_probe.enabled=true", "evaluation.linear_probe.epochs=2",
        "evaluation.attentive_probe.enabled=true", "evaluation.attentive_probe.epochs=2",
    ]  # fmt: skip
    first, second = run_processes(scores_here, 2, root, *probes)
    assert first == second
    assert first == pytest.approx(scores_here(root, *probes), rel=1e-9)
    assert {"linear_top1", "attentive_top1", "attentive_top5", "knn_top1"} <= first.keys()


def test_features_are_written_with_labels_and_names(root: Path, tmp_path: Path) -> None:
    scores_here(root, f"evaluation.export={tmp_path / 'features'}", "evaluation.layers=2")
    sets = open_sets(small_recipe(root).settings.data)
    for name, images in zip(("training", "held_out"), sets, strict=True):
        values, labels, names = load_features(tmp_path / "features" / f"{name}.safetensors")
        assert values.shape == (len(images), 2 * 32)
        assert labels.tolist() == list(images.labels)
        assert names == list(images.names)


def test_without_classes_features_are_written_all_the_same(root: Path, tmp_path: Path) -> None:
    scores = scores_here(root, f"evaluation.export={tmp_path / 'features'}", "data.labelled=false")
    assert "knn_top1" not in scores
    _, labels, _ = load_features(tmp_path / "features" / "held_out.safetensors")
    assert set(labels.tolist()) == {-1}


def test_the_last_layer_is_the_last_of_several(root: Path) -> None:
    recipe = small_recipe(root)
    model, images = recipe.build_model().eval(), first_batch(recipe).images
    one, both = (pooled_features(model, layers, images) for layers in (1, 2))
    assert torch.equal(both[:, 32:], one)
    assert not torch.allclose(both[:, :32], one)
    torch.testing.assert_close(one, model.extract_features(images).mean(1))
