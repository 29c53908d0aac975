"""The two sets of images: opened once, with labels that mean the same in both."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_recipes import SMALL_HJEPA

from overt.data.images.folder import ImageFolder, ReadableImages
from overt.data.images.packed import pack_images
from overt.data.images.synthetic import write_images
from overt.data.images.transforms import TrainingTransform, View
from overt.data.rng import sample_rng
from overt.distributed import init_distributed
from overt.errors import ConfigError, DataError
from overt.recipes.hjepa import data
from overt.recipes.hjepa.levels import valid_counts
from overt.recipes.hjepa.recipe import HJEPARecipe


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_images(tmp_path / "images", classes=4, per_class=3, size=16, seed=0)
    return tmp_path


@pytest.fixture
def without_first(root: Path) -> Path:
    """The same images without the first class, so that all the others have other numbers."""
    shutil.copytree(root / "images", root / "held_out")
    shutil.rmtree(min((root / "held_out").iterdir()))
    return root / "held_out"


def recipe_of(root: Path, training: Path, held_out: Path, *overrides: str) -> HJEPARecipe:
    places = [f"data.root={training}", f"data.val_root={held_out}", "data.synthetic=null"]
    return SMALL_HJEPA.recipe(root, *places, "evaluation.k=1", *overrides)


def scores_of(recipe: HJEPARecipe) -> dict[str, float]:
    with torch.inference_mode():
        return recipe.evaluate(recipe.build_model().eval(), init_distributed("cpu"))


@pytest.mark.parametrize("training", ["folder", "pack"])
@pytest.mark.parametrize("held_out", ["folder", "pack"])
def test_classes_go_by_name(training: str, held_out: str, root: Path, without_first: Path) -> None:
    places = [root / "images", without_first]
    for number, kind in enumerate((training, held_out)):
        if kind == "pack":
            pack_images(ImageFolder(places[number]), root / f"pack{number}")
            places[number] = root / f"pack{number}"
    recipe = recipe_of(root, *places)
    bank, wanted = recipe.sets
    assert wanted.classes == bank.classes
    assert set(wanted.labels) == {1, 2, 3}
    assert [wanted.read(index)[1] for index in range(9)] == list(wanted.labels)
    # Each image is its own nearest neighbour.
    assert scores_of(recipe)["knn_top1"] == 1.0


def test_a_class_that_was_never_trained_is_named(root: Path, without_first: Path) -> None:
    first = ImageFolder(root / "images").classes[0]
    with pytest.raises(DataError, match=rf"1 class \({first}\).*data.labeled=false"):
        recipe_of(root, without_first, root / "images").build_dataset()
    bank, wanted = recipe_of(root, without_first, root / "images", "data.labeled=false").sets
    assert bank.classes == wanted.classes == ()


def test_classes_of_archives_go_by_number(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, labels in (("train", [0, 1, 2, 4]), ("test", [1, 2]), ("more", [1, 3, 5])):
        pixels = rng.integers(0, 256, (len(labels), 16, 16), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=pixels, labels=np.array(labels))
    train, test, more = (tmp_path / f"{name}.npz" for name in ("train", "test", "more"))
    assert recipe_of(tmp_path, train, test).sets[1].labels.tolist() == [1, 2]
    # No image of class 3 was there to learn from, although there is one of class 4.
    with pytest.raises(DataError, match=r"2 classes \(3, 5\)"):
        recipe_of(tmp_path, train, more).build_dataset()


def test_the_labels_of_a_pack_are_left_alone_where_none_are_wanted(root: Path) -> None:
    pack_images(ImageFolder(root / "images"), root / "pack")
    recipe = recipe_of(root, root / "pack", root / "pack", "data.labeled=false")
    assert "knn_top1" not in scores_of(recipe)
    assert {recipe.sets[0].read(index)[1] for index in range(12)} == {-1}


def test_a_pack_without_classes_is_warned_of(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    pack_images(ImageFolder(root / "images", labeled=False), root / "pack")
    recipe = recipe_of(root, root / "pack", root / "images")
    assert "knn_top1" not in scores_of(recipe)
    assert "pack has no classes, so there are neither k-NN nor probes" in caplog.text


@pytest.mark.parametrize("probe", ["linear_probe", "attentive_probe"])
def test_a_probe_without_labels_is_refused(probe: str, root: Path) -> None:
    with pytest.raises(ConfigError, match=rf"evaluation.{probe}.enabled=true.*data.labeled=false"):
        SMALL_HJEPA.recipe(root, "data.labeled=false", f"evaluation.{probe}.enabled=true")


def test_an_archive_without_labels_names_the_setting(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", images=np.zeros((4, 16, 16), np.uint8))
    with pytest.raises(DataError, match=r"no array 'labels'.*data.labeled=false"):
        recipe_of(tmp_path, tmp_path / "set.npz", tmp_path / "set.npz").build_dataset()


@pytest.mark.parametrize("apart", [True, False])
def test_sets_are_opened_once(
    apart: bool, root: Path, without_first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    open_images = data.open_images
    monkeypatch.setattr(
        data, "open_images", lambda *of: (opened.append(of[0]), open_images(*of))[1]
    )
    recipe = recipe_of(root, root / "images", without_first if apart else root / "images")
    recipe.build_dataset()
    for _ in range(2):
        scores_of(recipe)
        recipe.visualize(recipe.build_model().eval())
    assert len(opened) == (2 if apart else 1)


def test_an_image_is_warned_of_once_in_all_evaluations(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = recipe_of(root, root / "images", root / "images")
    broken = ImageFolder(root / "images").names[:2]
    for name in broken:
        (root / "images" / name).write_bytes(b"broken")
    recipe.build_dataset().sample(0, np.random.default_rng(0))
    for _ in range(2):
        scores = scores_of(recipe)
        recipe.visualize(recipe.build_model().eval())
        assert scores["unreadable_images"] == scores["unreadable_training_images"] == 2
    assert [caplog.text.count(f"{name}: not a readable") for name in broken] == [1, 1]


@pytest.mark.parametrize("written", ["images", "images/", "held_out/../images"])
def test_scores_on_the_training_images_are_warned_of(
    written: str, root: Path, without_first: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = SMALL_HJEPA.config(root, "data.synthetic=null").settings.data
    training = str(root / "images")
    other = replace(settings, root=training, val_root=str(without_first))
    data.open_sets(other)
    assert not caplog.text
    same = replace(settings, root=training, val_root=f"{root}/{written}")
    assert len({id(images) for images in data.open_sets(same)}) == 1
    assert "is data.root: every image is scored against itself" in caplog.text


def test_a_view_of_a_large_photograph_is_decoded_smaller(tmp_path: Path) -> None:
    """The same view, up to what the decoder rounds, of a quarter of the pixels."""
    coarse = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    photograph = Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC)
    (tmp_path / "a").mkdir()
    photograph.save(tmp_path / "a" / "large.jpg", quality=95)
    images = ReadableImages(ImageFolder(tmp_path))
    transform = TrainingTransform((96, 96), scale=(0.5, 1.0), flip=0.5)
    sizes = []

    class Watched(TrainingTransform):
        def apply(self, image: torch.Tensor, view: View) -> torch.Tensor:
            sizes.append(tuple(image.shape[1:]))
            return super().apply(image, view)

    for seed in range(4):
        expected = transform(images.read(0)[0], sample_rng(seed, 0, 0))
        watched = Watched((96, 96), scale=(0.5, 1.0), flip=0.5)
        view, _ = data.read_view(images, 0, watched, sample_rng(seed, 0, 0))
        assert (view.float() - expected.float()).abs().mean() < 3.0
    assert set(sizes) <= {(240, 320), (120, 160)}


def test_a_view_of_a_replaced_image_does_not_depend_on_what_was_met_before(tmp_path: Path) -> None:
    """A truncated JPEG has a size; the view belongs to the image that is read instead."""
    (tmp_path / "a").mkdir()
    small = tmp_path / "a" / "0.jpg"
    pixels = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    Image.fromarray(pixels[:64, :64]).save(small)
    small.write_bytes(small.read_bytes()[:-500])
    Image.fromarray(pixels).save(tmp_path / "a" / "1.png")
    images = ReadableImages(ImageFolder(tmp_path))
    transform = TrainingTransform((32, 32), scale=(0.8, 1.0))
    first, second = (data.read_view(images, 0, transform, sample_rng(0, 0, 0))[0] for _ in range(2))
    expected = transform(images.read(1)[0], sample_rng(0, 0, 0))
    assert len(images.unreadable) == 1
    assert torch.equal(first, expected)
    assert torch.equal(second, expected)


def test_lists_shorter_than_a_window_have_no_valid_one(root: Path) -> None:
    """Two patches are hidden; a window of the last level has eight."""
    words = ["model.pooling=sequence", "model.num_hierarchies=4", "model.projection=predictions"]
    words += ["model.fpn.use_fpn=true", "loss.hierarchy_weights=[1,1,1,1]"]
    recipe = SMALL_HJEPA.recipe(root, *words)
    masks = [([np.arange(2, 16)], [np.array([0, 1])])] * 3
    layout = data.lay_out(masks, (4, 4), recipe.settings.model)
    assert valid_counts(layout.pooling, 4).tolist() == [6, 3, 0, 0]
    images = torch.zeros(3, 3, 16, 16, dtype=torch.uint8)
    counts = {"tokens": torch.tensor([6, 3, 0, 0]), "samples": torch.tensor(3.0)}
    output = recipe.loss(recipe.build_model(), data.Batch(images, None, layout), counts, 0)
    output.total.backward()
    assert output.total.isfinite()
