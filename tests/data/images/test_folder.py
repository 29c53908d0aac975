"""Images of a folder by index, and the policy for those that cannot be read."""

import logging
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from overt.data.images.folder import ImageFolder, ReadableImages
from overt.errors import DataError


@pytest.fixture
def root(tmp_path):
    rng = np.random.default_rng(0)
    for folder in ("cat", "dog"):
        (tmp_path / folder).mkdir()
        for number in range(3):
            pixels = rng.integers(0, 256, (4 + number, 6, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / folder / f"{number}.png")
    return tmp_path


def test_read(root):
    images = pickle.loads(pickle.dumps(ImageFolder(root)))
    assert len(images) == 6
    image, label = images.read(4)
    assert images.names[4] == "dog/1.png"
    assert label == 1
    assert image.dtype == torch.uint8
    expected = np.asarray(Image.open(root / "dog" / "1.png"))
    assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)


def test_without_labels(root):
    images = ImageFolder(root, labeled=False)
    assert {images.read(index)[1] for index in range(6)} == {-1}


def test_a_broken_or_vanished_file_is_named(root):
    images = ImageFolder(root)
    (root / "dog" / "1.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"dog/1.png: not a readable image"):
        images.read(4)
    (root / "dog" / "2.png").unlink()
    with pytest.raises(DataError, match=r"dog/2.png: cannot be read"):
        images.read(5)


def test_the_next_readable_image_stands_in(root, caplog):
    sound = [ImageFolder(root).read(index) for index in range(6)]
    for name in ("cat/1.png", "cat/2.png", "dog/2.png"):
        (root / name).write_bytes(b"broken")
    images = ReadableImages(ImageFolder(root))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = [images.read(index) for index in range(6)]
    stand_in = [0, 3, 3, 3, 4, 0]
    for (image, label), index in zip(found, stand_in, strict=True):
        assert torch.equal(image, sound[index][0])
        assert label == sound[index][1]
    # counted and named, each once although met several times
    assert list(images.unreadable) == ["cat/1.png", "cat/2.png", "dog/2.png"]
    assert [record.getMessage().count(".png: not a readable") for record in caplog.records] == [
        1
    ] * 3
    assert "number 3 here" in caplog.records[-1].getMessage()


def test_what_stands_in_does_not_depend_on_what_was_read_before(root):
    (root / "cat" / "1.png").write_bytes(b"broken")
    one, other = ReadableImages(ImageFolder(root)), ReadableImages(ImageFolder(root))
    forward = [one.read(index)[0] for index in range(6)]
    backward = [other.read(index)[0] for index in reversed(range(6))][::-1]
    assert all(torch.equal(*pair) for pair in zip(forward, backward, strict=True))


def test_a_set_that_is_gone_is_no_accident(root):
    images = ReadableImages(ImageFolder(root))
    for path in root.rglob("*.png"):
        path.unlink()
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"6 images in a row cannot be read.*Check that the disk"
        ):
            images.read(2)


def test_listing_needs_no_torch(root):
    program = (
        "import sys; from overt.data.images.folder import ImageFolder; "
        f"ImageFolder({str(root)!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_evaluation_can_ask_for_this_very_image(root, caplog):
    images = ReadableImages(ImageFolder(root))
    broken = images.names[0]
    (root / broken).write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert images.try_read(0) is None
        assert images.try_read(0) is None  # known by now: one warning
    assert list(images.unreadable) == [broken]
    assert caplog.text.count(broken) == 1
    pixels, label = images.try_read(1)
    assert pixels.shape[0] == 3
    assert label == images.labels[1]
