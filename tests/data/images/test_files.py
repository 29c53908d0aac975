"""Which images are found, in which order and class, and what is refused."""

import os
import pickle

import numpy as np
import pytest

from overt.data.images.files import UNLABELED, Names, list_images
from overt.errors import DataError


def touch(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_classes_are_the_sorted_top_folders_and_images_lie_at_any_depth(tmp_path):
    touch(tmp_path, "b/2.JPEG", "b/deep/er/1.webp", "a/x.png", "a/.hidden.png", "b/notes.txt")
    touch(tmp_path, ".cache/c.jpg", "readme.md", "c/y.jpg")
    names, labels, classes = list_images(tmp_path)
    assert list(names) == ["a/x.png", "b/2.JPEG", "b/deep/er/1.webp", "c/y.jpg"]
    assert labels.tolist() == [0, 1, 1, 2]
    assert classes == ("a", "b", "c")


def test_the_order_does_not_depend_on_the_order_of_creation(tmp_path):
    names = [f"{folder}/{number}.png" for folder in "xyz" for number in range(20)]
    shuffled = np.random.default_rng(0).permutation(names)
    touch(tmp_path / "one", *names)
    touch(tmp_path / "two", *shuffled)
    assert list(list_images(tmp_path / "one").names) == list(list_images(tmp_path / "two").names)


def test_without_labels_images_may_lie_anywhere(tmp_path):
    touch(tmp_path, "z.png", "empty/notes.txt", "train/a/1.jpg", "val/2.jpg")
    names, labels, classes = list_images(tmp_path, labeled=False)
    assert list(names) == ["train/a/1.jpg", "val/2.jpg", "z.png"]
    assert labels.tolist() == [UNLABELED] * 3
    assert classes == ()


def test_a_missing_root_says_what_is_expected(tmp_path):
    with pytest.raises(DataError, match=r"does not exist.*CLASS.*overt data images FOLDER"):
        list_images(tmp_path / "none")
    touch(tmp_path, "file")
    with pytest.raises(DataError, match="is a file"):
        list_images(tmp_path / "file")


@pytest.mark.parametrize("labeled", [True, False])
def test_no_image_at_all_says_what_there_was(tmp_path, labeled):
    touch(tmp_path, "a/photos.tar", "b/x.txt")
    with pytest.raises(DataError, match=r"2 other files \(a/photos.tar, b/x.txt\)"):
        list_images(tmp_path, labeled)


def test_empty_class_folders_are_named(tmp_path):
    touch(tmp_path, "cat/1.png", "dog/readme.txt")
    (tmp_path / "emu").mkdir()
    with pytest.raises(DataError, match=r"2 class folders \(dog, emu\) without an image"):
        list_images(tmp_path)


def test_images_in_no_class_are_refused(tmp_path):
    touch(tmp_path, "cat/1.png", "stray.png")
    with pytest.raises(DataError, match=r"1 image \(stray.png\) outside of any class folder"):
        list_images(tmp_path)


def test_the_folder_above_the_splits_is_noticed(tmp_path):
    touch(tmp_path, "train/cat/1.png", "val/cat/2.png")
    with pytest.raises(DataError, match="splits, not classes"):
        list_images(tmp_path)
    assert list_images(tmp_path / "train").classes == ("cat",)


def test_links_to_classes_are_followed(tmp_path):
    touch(tmp_path / "store", "n01/1.png", "n02/2.png")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "cat").symlink_to(tmp_path / "store" / "n02")
    (tmp_path / "set" / "dog").symlink_to(tmp_path / "store" / "n01")
    assert list(list_images(tmp_path / "set").names) == ["cat/2.png", "dog/1.png"]


def test_links_in_a_circle_are_refused(tmp_path):
    touch(tmp_path, "one/a/1.png", "two/b/2.png")
    (tmp_path / "one" / "a" / "up").symlink_to(tmp_path / "one")
    with pytest.raises(DataError, match="points to a folder above it"):
        list_images(tmp_path / "one")
    (tmp_path / "one" / "a" / "up").unlink()
    (tmp_path / "one" / "a" / "over").symlink_to(tmp_path / "two" / "b")
    (tmp_path / "two" / "b" / "back").symlink_to(tmp_path / "one" / "a")
    with pytest.raises(DataError, match="points to a folder above it"):
        list_images(tmp_path / "one")


def test_names_are_a_sequence():
    words = ["ein", "", "zwölf", "x" * 300, os.fsdecode(b"not \xff text")]
    names = pickle.loads(pickle.dumps(Names.pack(words)))
    assert list(names) == words
    assert names[-1] == words[-1]
    assert names[1:4:2] == words[1:4:2]
    assert "zwölf" in names
    for index in (5, -6):
        with pytest.raises(IndexError):
            names[index]
    assert list(Names.pack([])) == []
