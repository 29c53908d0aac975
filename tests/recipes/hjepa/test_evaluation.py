"""Scores of frozen features: probes, layers, files, and the same on any number of processes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_HJEPA, first_batch

from overt.distributed import init_distributed
from overt.errors import ConfigError
from overt.metrics.features import load_features
from overt.recipes.hjepa.data import HeldOutImages, open_sets
from overt.recipes.hjepa.evaluation import (
    pooled_features,
    spread_of_features,
    spread_over_classes,
    warn_of_empty_levels,
    warn_of_few_neighbors,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jepa")


def scores_here(root: Path, *overrides: str) -> dict[str, float]:
    recipe = SMALL_HJEPA.recipe(root, "evaluation.batch_size=5", *overrides)
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
    assert first == second  # to the last bit: scores are gathered, then computed on each rank
    # Another process may round a matrix product otherwise; no sample counts twice or not at all.
    assert first == pytest.approx(scores_here(root, *probes), rel=1e-5)
    assert {"linear_top1", "attentive_top1", "attentive_top5", "knn_top1"} <= first.keys()


def test_features_are_written_with_labels_and_names(root: Path, tmp_path: Path) -> None:
    scores = scores_here(root, f"evaluation.export={tmp_path / 'features'}", "evaluation.layers=2")
    assert scores["feature_score"] == scores["knn_top1"]  # what ranks checkpoints
    sets = open_sets(SMALL_HJEPA.recipe(root).settings.data)
    for name, images in zip(("training", "held_out"), sets, strict=True):
        values, labels, names = load_features(tmp_path / "features" / f"{name}.safetensors")
        assert values.shape == (len(images), 2 * 32)
        assert labels.tolist() == list(images.labels)
        assert names == list(images.names)


def test_without_classes_features_are_written_all_the_same(root: Path, tmp_path: Path) -> None:
    scores = scores_here(root, f"evaluation.export={tmp_path / 'features'}", "data.labeled=false")
    assert "knn_top1" not in scores
    assert scores["feature_score"] == pytest.approx(scores["rankme"] / 32)
    assert SMALL_HJEPA.config(root).checkpoint.metric_name == "feature_score"  # best needs it
    _, labels, _ = load_features(tmp_path / "features" / "held_out.safetensors")
    assert set(labels.tolist()) == {-1}


def test_neighbors_beyond_the_images_are_not_scored_and_named_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_few_neighbors.cache_clear()
    words = ("evaluation.max_samples=8", "evaluation.k=20", "evaluation.further_k=[1,8,9,200]")
    for _ in range(2):
        scores = scores_here(root, *words)
        assert {key for key in scores if "_k" in key} == {"knn_top1_k1", "knn_top1_k8"}
        assert scores["knn_top1"] == scores["knn_top1_k8"]
    first, second = (record.getMessage() for record in caplog.records)
    assert "evaluation.k=20, but k-NN has 8 training images: knn_top1 is that of k=8" in first
    assert "evaluation.further_k has 9, 200" in second
    assert "knn_top1_k9, knn_top1_k200 is not scored" in second


def test_the_last_layer_is_the_last_of_several(root: Path) -> None:
    recipe = SMALL_HJEPA.recipe(root)
    model, images = recipe.build_model().eval(), first_batch(recipe).images
    one, both = (pooled_features(model, layers, images) for layers in (1, 2))
    assert torch.equal(both[:, 32:], one)
    assert not torch.allclose(both[:, :32], one)
    torch.testing.assert_close(one, model.extract_features(images).mean(1))


def test_a_level_may_be_scored(root: Path) -> None:
    words = ("model.projection=shared", "evaluation.level=1")
    recipe = SMALL_HJEPA.recipe(root, *words)
    model, images = recipe.build_model().eval(), first_batch(recipe).images
    level = recipe.encode_images(model, images)
    torch.testing.assert_close(level, model.extract_features(images, 1).mean(1))
    assert not torch.allclose(level, pooled_features(model, 1, images))
    with pytest.raises(ConfigError, match="use a level from 0 to 2"):
        SMALL_HJEPA.recipe(root, "evaluation.level=3")


def test_a_level_without_regions_has_no_loss(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Blocks of a fifth of 4 x 4 patches never hide more than half of them; all together may."""
    world = init_distributed("cpu")
    warn_of_empty_levels.cache_clear()
    scored = []
    for word in ("data.masking.predict=blocks", "data.masking.predict=union"):
        recipe = SMALL_HJEPA.recipe(root, word)
        with torch.inference_mode():
            scored.append(recipe.evaluate(recipe.build_model().eval(), world))
    apart, together = scored
    assert apart["val_loss_h1"] > 0
    assert "val_loss_h2" not in apart
    assert together["val_loss_h2"] > 0
    assert caplog.text.count("level 2 of the hierarchy has no region") == 1


def test_few_images_are_of_all_classes_alike_and_always_the_same() -> None:
    labels = np.repeat(np.arange(5), (40, 7, 30, 2, 21))  # class by class, as files are listed
    chosen = spread_over_classes(labels, 20)
    counts = np.bincount(labels[chosen])
    assert counts[3] == 2  # all there are; of the others 4 or 5
    assert sorted(counts) == [2, 4, 4, 5, 5]
    assert (np.diff(chosen) > 0).all()
    assert np.array_equal(chosen, spread_over_classes(labels, 20))
    assert set(chosen) < set(spread_over_classes(labels, 50))
    assert chosen[0] > 0 or chosen[1] > 1  # not the first of each class
    assert np.array_equal(spread_over_classes(labels, 100), np.arange(100))
    assert np.array_equal(spread_over_classes(labels, 1000), np.arange(100))
    assert len(spread_over_classes(labels, 0)) == 0


def test_where_not_all_classes_fit_both_sets_have_the_same_ones() -> None:
    training, held_out = np.repeat(np.arange(1000), 13), np.repeat(np.arange(999), 5)
    found, wanted = (
        set(labels[spread_over_classes(labels, 100)]) for labels in (training, held_out)
    )
    assert len(found) == len(wanted) == 100
    assert len(found & wanted) >= 99  # the last class is in one of them only
    assert max(found) > 500  # not the first by name


def test_images_without_classes_come_from_the_whole_set() -> None:
    chosen = spread_over_classes(np.full(1000, -1), 10)
    assert len(set(chosen)) == 10
    assert chosen[-1] > 500


def test_a_part_of_the_images_has_every_class_and_each_image_once(
    run_processes: Callable[..., list[dict[str, float]]], root: Path, tmp_path: Path
) -> None:
    few = ["evaluation.max_samples=8", f"evaluation.export={tmp_path / 'features'}"]
    alone = scores_here(root, *few)
    sets = open_sets(SMALL_HJEPA.recipe(root).settings.data)
    for name, images in zip(("training", "held_out"), sets, strict=True):
        _, labels, names = load_features(tmp_path / "features" / f"{name}.safetensors")
        least = min(2, np.bincount(images.labels).min())  # chance left few of a class
        assert np.bincount(labels.numpy(), minlength=4).min() == least > 0
        by_name = dict(zip(images.names, images.labels, strict=True))
        assert [by_name[name] for name in names] == labels.tolist()
    assert run_processes(scores_here, 2, root, *few)[0] == pytest.approx(alone, rel=1e-5)


def test_pictures_show_images_of_several_classes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = SMALL_HJEPA.recipe(root, "data.held_out=0.9")
    recipe.build_dataset()
    seen = []
    read = HeldOutImages.try_read

    def note(images: HeldOutImages, index: int) -> tuple[torch.Tensor, int] | None:
        seen.append(images.images.labels[index])
        return read(images, index)

    monkeypatch.setattr(HeldOutImages, "try_read", note)
    recipe.visualize(recipe.build_model().eval())
    assert sorted(seen) == [0, 1, 2, 3]
    seen.clear()
    settings = SMALL_HJEPA.recipe(root, "evaluation.batch_size=4").settings.evaluation
    images = HeldOutImages(open_sets(recipe.settings.data)[1], recipe.settings)
    spread_of_features(recipe.build_model(), images, settings, torch.device("cpu"))
    assert sorted(seen) == [0, 1, 2, 3]


def test_an_attentive_probe_may_stream_its_tokens(root: Path) -> None:
    words = ["evaluation.attentive_probe.enabled=true", "evaluation.attentive_probe.epochs=2"]
    streamed = scores_here(root, *words, "evaluation.attentive_probe.stream=true")
    kept = scores_here(root, *words)
    assert streamed["attentive_top1"] == pytest.approx(kept["attentive_top1"], abs=0.1)
