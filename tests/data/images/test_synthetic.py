"""Synthetic images: reproducible, one class apart from the other, in the layout that is read."""

import numpy as np
import pytest

from overt.data.images.folder import ImageFolder
from overt.data.images.synthetic import (
    MOST_CLASSES,
    SHAPES,
    TEXTURES,
    class_names,
    draw_image,
    write_images,
)
from overt.data.rng import sample_rng
from overt.errors import DataError


def test_the_folder_is_read_as_it_was_written(tmp_path):
    names = write_images(tmp_path / "set", classes=4, per_class=3, size=24)
    images = ImageFolder(tmp_path / "set")
    assert images.classes == tuple(sorted(names))
    assert np.bincount(images.labels).tolist() == [3] * 4
    assert images.read(0)[0].shape == (3, 24, 24)


def test_an_image_depends_on_seed_class_and_number_only(tmp_path):
    write_images(tmp_path / "small", classes=2, per_class=2, size=16)
    write_images(tmp_path / "large", classes=9, per_class=3, size=16)
    write_images(tmp_path / "other", classes=2, per_class=2, size=16, seed=1)
    found = 0
    for path in sorted((tmp_path / "small").glob("*/*.png")):
        name = path.relative_to(tmp_path / "small")
        assert path.read_bytes() == (tmp_path / "large" / name).read_bytes()
        assert path.read_bytes() != (tmp_path / "other" / name).read_bytes()
        found += 1
    assert found == 4


@pytest.mark.parametrize("classes", range(1, MOST_CLASSES + 1))
def test_classes_are_distinct_and_no_shape_or_texture_tells_alone(classes):
    names = class_names(classes)
    assert len(set(names)) == classes
    pairs = [name.split("_") for name in names]
    assert all(shape in SHAPES and texture in TEXTURES for shape, texture in pairs)
    if classes >= 4:
        assert len({shape for shape, _ in pairs}) < classes
        assert len({texture for _, texture in pairs}) < classes


@pytest.mark.parametrize("classes", [0, MOST_CLASSES + 1])
def test_impossible_numbers_of_classes(classes):
    with pytest.raises(DataError, match="allowed: 1 to 36"):
        class_names(classes)


@pytest.mark.parametrize("name", class_names(MOST_CLASSES))
def test_every_class_shows_something_that_varies(name):
    images = [draw_image(name, 32, sample_rng(0, 0, number)) for number in range(4)]
    assert all(image.std() > 10 for image in images)
    assert abs(images[0].astype(int) - images[1]).mean() > 10


def test_other_data_is_not_touched(tmp_path):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(DataError, match="exists"):
        write_images(tmp_path, 1, 1, 16)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    write_images(tmp_path / "empty", 1, 1, 16)
    assert len(ImageFolder(tmp_path / "empty")) == 1
