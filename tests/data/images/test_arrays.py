"""NumPy archives: every layout of the same images reads alike, the rest is refused."""

import pickle

import numpy as np
import pytest

from overt.data.images.arrays import ImageArrays
from overt.errors import DataError

RNG = np.random.default_rng(0)
COLOR = RNG.integers(0, 256, (4, 5, 7, 3), dtype=np.uint8)
GRAY = np.repeat(COLOR[..., :1], 3, axis=3)
LABELS = np.array([2, 0, 1, 2])


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (COLOR, COLOR),
        (COLOR.transpose(0, 3, 1, 2), COLOR),
        (np.concatenate([COLOR, COLOR[..., :1]], axis=3), COLOR),
        (GRAY[..., 0], GRAY),
        (GRAY[..., :1], GRAY),
        (GRAY[..., :1].transpose(0, 3, 1, 2), GRAY),
    ],
)
@pytest.mark.parametrize("labels", [LABELS, LABELS[:, None].astype(np.uint8)])
def test_layouts(tmp_path, stored, expected, labels):
    np.savez_compressed(tmp_path / "set.npz", images=stored, labels=labels)
    images = pickle.loads(pickle.dumps(ImageArrays(tmp_path / "set.npz")))
    assert images.classes == ("0", "1", "2")
    assert images.names[3] == "set.npz[3]"
    for index in range(4):
        image, label = images.read(index)
        assert np.array_equal(image.permute(1, 2, 0).numpy(), expected[index])
        assert label == LABELS[index]


def test_other_keys_and_no_labels(tmp_path):
    np.savez(tmp_path / "set.npz", train_images=COLOR)
    images = ImageArrays(tmp_path / "set.npz", images="train_images", labels=None)
    assert images.labels.tolist() == [-1] * 4
    assert images.classes == ()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"image": COLOR, "labels": LABELS}, r"no array 'images' \(did you mean image\?\)"),
        ({"images": COLOR}, "no array 'labels'"),
        ({"images": COLOR / 255, "labels": LABELS}, "expected uint8"),
        ({"images": COLOR[:0], "labels": LABELS[:0]}, "at least one image"),
        ({"images": COLOR[:, :, :2, :2], "labels": LABELS}, "1, 3 or 4 channels"),
        ({"images": COLOR, "labels": LABELS[:3]}, "expected 4 whole numbers"),
        ({"images": COLOR, "labels": LABELS / 2}, "whole numbers"),
        ({"images": COLOR, "labels": LABELS - 1}, "from 0 on"),
        (
            {"images": COLOR, "labels": LABELS * 10**12},
            "is 2000000000000, with 3 distinct ones for 4 images; labels count from 0",
        ),
        ({"images": COLOR, "labels": LABELS.astype(np.uint64) - 1}, "is 18446744073709551615"),
        ({"images": np.array([{}]), "labels": LABELS}, "plain arrays"),
    ],
)
def test_refusals(tmp_path, arrays, message):
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(DataError, match=message):
        ImageArrays(tmp_path / "set.npz")


def test_few_images_of_many_classes_are_allowed(tmp_path):
    np.savez(tmp_path / "set.npz", images=COLOR, labels=np.array([0, 999, 3, 21840]))
    assert len(ImageArrays(tmp_path / "set.npz").classes) == 21841


def test_files_that_are_no_archive(tmp_path):
    with pytest.raises(DataError, match=r"no such file.*np.savez"):
        ImageArrays(tmp_path / "none.npz")
    np.save(tmp_path / "one.npy", COLOR)
    with pytest.raises(DataError, match="holds one array"):
        ImageArrays(tmp_path / "one.npy")
    np.savez(tmp_path / "set.npz", images=COLOR, labels=LABELS)
    whole = (tmp_path / "set.npz").read_bytes()
    for length in (0, 10, len(whole) - 30):
        (tmp_path / "cut.npz").write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"cut.npz: not a readable .npz"):
            ImageArrays(tmp_path / "cut.npz")
