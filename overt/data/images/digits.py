"""scikit-learn's 1,797 real digits as a small image set: 8 x 8 gray, scaled up, a third held out.

scikit-learn includes them, so nothing is downloaded. This file does not import torch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overt.errors import DataError
from overt.files.atomic import new_file


def load_digits(size: int = 32) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images (1797, size, size) and labels (1797,)."""
    try:
        from sklearn.datasets import load_digits as load
    except ImportError as error:
        raise DataError(
            "the digits are inside scikit-learn, which is missing: pip install 'overt[digits]'"
        ) from error
    bunch = load()
    gray = [Image.fromarray(image.astype(np.float32) / 16 * 255) for image in bunch.images]
    scaled = [np.asarray(image.resize((size, size), Image.Resampling.BILINEAR)) for image in gray]
    return np.stack(scaled).round().astype(np.uint8), bunch.target.astype(np.int64)


def split_thirds(count: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return indices of two thirds for training and one third held out, shuffled once."""
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[count // 3 :]), np.sort(order[: count // 3])


def write_digits(root: Path | str, size: int = 32) -> tuple[Path, Path]:
    """Write ROOT/train.npz and ROOT/test.npz for `ImageArrays`; return the two paths."""
    images, labels = load_digits(size)
    root = Path(root)
    paths = root / "train.npz", root / "test.npz"
    for path, part in zip(paths, split_thirds(len(images)), strict=True):
        with new_file(path) as hidden, hidden.open("wb") as file:
            np.savez(file, images=images[part], labels=labels[part])
    return paths
