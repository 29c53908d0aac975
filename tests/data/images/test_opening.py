"""Sets of images by their path."""

from pathlib import Path

import numpy as np
import pytest

from overt.data.images.arrays import ImageArrays
from overt.data.images.folder import ImageFolder
from overt.data.images.opening import open_images
from overt.data.images.packed import PackedImages, pack_arrays
from overt.data.images.synthetic import write_images


def test_what_lies_there_decides(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_images(tmp_path / "folder", classes=1, per_class=1, size=16)
    pixels, labels = np.zeros((2, 4, 4, 3), np.uint8), np.array([0, 1])
    np.savez(tmp_path / "set.npz", images=pixels, labels=labels)
    pack_arrays(pixels, labels, ["a", "b"], ("x", "y"), tmp_path / "pack")
    assert isinstance(open_images(str(tmp_path / "folder"), labeled=True), ImageFolder)
    assert isinstance(open_images(str(tmp_path / "set.npz"), labeled=True), ImageArrays)
    assert isinstance(open_images(str(tmp_path / "pack"), labeled=True), PackedImages)
    assert open_images(str(tmp_path / "pack"), labeled=False).read(1)[1] == -1
    pack_arrays(pixels, labels * 0 - 1, ["a", "b"], (), tmp_path / "plain")
    open_images(str(tmp_path / "plain"), labeled=True)
    assert "has no classes" in caplog.text
