"""Open a set of images by its path: a folder, a pack, or a NumPy archive."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from overt.data.images.arrays import ImageArrays
from overt.data.images.decode import Shrink
from overt.data.images.files import UNLABELED
from overt.data.images.folder import ImageFolder, Images
from overt.data.images.packed import PackedImages

logger = logging.getLogger(__name__)


class Relabeled:
    """Images with replaced labels."""

    def __init__(self, images: Images, labels: NDArray[np.int64], classes: tuple[str, ...]) -> None:
        self.images, self.labels, self.classes = images, labels, classes  # labels (n,)
        self.names = images.names

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int, shrink: Shrink | None = None) -> tuple[Tensor, int]:
        return self.images.read(index, shrink)[0], int(self.labels[index])


def open_images(root: str, labeled: bool) -> Images:
    """Open a folder of images, a pack, or a NumPy archive, whichever the path is."""
    path = Path(root)
    if path.suffix == ".npz":
        return ImageArrays(path, labels="labels" if labeled else None)
    if not (path / "pack.json").is_file():
        return ImageFolder(path, labeled)
    images = PackedImages(path)
    if not labeled:
        return Relabeled(images, np.full(len(images), UNLABELED, np.int64), ())
    if not images.classes:
        logger.warning(
            "the pack %s has no classes, so there are neither k-NN nor probes; pack it without "
            "--unlabeled, or set data.labeled=false",
            path,
        )
    return images
