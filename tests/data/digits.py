"""scikit-learn's 1,797 real digits, 8 x 8, scaled to 32 x 32: a small set that no one here made.

Imported by tests that learn; they begin with `pytest.importorskip("sklearn")`.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image


def load_digits(size: int = 32) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (1797, size, size) uint8 and labels (1797,)."""
    from sklearn.datasets import load_digits as load

    bunch = load()
    grey = torch.from_numpy(bunch.images / 16).float()[:, None]  # (1797, 1, 8, 8) 0 to 1
    grey = F.interpolate(grey, (size, size), mode="bilinear", align_corners=False)[:, 0]
    return (grey * 255).round().to(torch.uint8).numpy(), bunch.target.astype(np.int64)


def split_thirds(count: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of two thirds to train on and of one third held out, shuffled once."""
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[count // 3 :]), np.sort(order[: count // 3])


def write_digits_archives(folder: Path, size: int = 32) -> tuple[Path, Path]:
    """Write train.npz and test.npz for `ImageArrays`; returns the two paths."""
    images, labels = load_digits(size)
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.npz", folder / "test.npz"
    for path, part in zip(paths, split_thirds(len(images)), strict=True):
        np.savez(path, images=images[part], labels=labels[part])
    return paths


def write_digits_folders(folder: Path, size: int = 32) -> tuple[Path, Path]:
    """Write train/DIGIT/*.png and test/DIGIT/*.png for `ImageFolder`; returns the two roots."""
    images, labels = load_digits(size)
    roots = folder / "train", folder / "test"
    for root, part in zip(roots, split_thirds(len(images)), strict=True):
        for index in part:
            target = root / str(labels[index])
            target.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[index]).save(target / f"{index:04d}.png", compress_level=1)
    return roots
