"""Images in a folder, by index, and how to handle unreadable ones.

`ImageFolder`, `ImageArrays` and `PackedImages` have the same interface. This file does not import
torch before the first image is read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from overt.data.images.decode import Shrink, as_tensor, decode_image, read_file
from overt.data.images.files import list_images
from overt.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

# Neighbors tried instead of an unreadable image; this many failures in a row are not an accident.
TRIES = 100

logger = logging.getLogger(__name__)


class Images(Protocol):
    """Images by index, with their classes if known."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def labels(self) -> NDArray[np.int64]:
        """Return (n,) the index of each image's class in `classes`, -1 without classes."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def read(self, index: int, shrink: Shrink | None = None) -> tuple[Tensor, int]:
        """Return the pixels (3, H, W) uint8 and the label; a DataError names a broken image.

        `shrink` gets the size of an image file, right before it is decoded, and returns by which
        factor it may be reduced; only JPEGs are.
        """


class ImageFolder:
    """The images below a folder at any depth: JPEG, PNG, WebP; sorted by name.

    The folders in `root` are the classes, sorted; `labeled=False` accepts images anywhere, all
    with label -1.
    """

    def __init__(self, root: Path | str, labeled: bool = True) -> None:
        self.root = Path(root)
        self.names, self.labels, self.classes = list_images(root, labeled)

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int, shrink: Shrink | None = None) -> tuple[Tensor, int]:
        """Return the pixels (3, H, W) uint8 and the label of an image."""
        path = self.root / self.names[index]
        return as_tensor(decode_image(read_file(path), str(path), shrink)), int(self.labels[index])


class ReadableImages:
    """Images with unreadable ones skipped, counted and named.

    An unreadable image is replaced by the next readable one. This depends only on the files, so
    ranks, workers and epochs agree. Each process, including loader workers, warns once for each
    such image, and training writes that to warnings/ in the run folder.
    """

    def __init__(self, images: Images) -> None:
        self.images = images
        self.names, self.labels, self.classes = images.names, images.labels, images.classes
        self.unreadable: dict[str, str] = {}  # name and reason, as far as met by this process

    def __len__(self) -> int:
        return len(self.images)

    def try_read(self, index: int, shrink: Shrink | None = None) -> tuple[Tensor, int] | None:
        """Return the pixels and the label of exactly this image, or None if it cannot be read."""
        name = self.names[index]
        if name in self.unreadable:
            return None
        try:
            return self.images.read(index, *([] if shrink is None else [shrink]))
        except DataError as error:
            self.unreadable[name] = str(error)
            logger.warning(
                "skipped an unreadable image, number %d here: %s", len(self.unreadable), error
            )
            return None

    def read(self, index: int, shrink: Shrink | None = None) -> tuple[Tensor, int]:
        """Return pixels (3, H, W) uint8 and label of the first readable image from `index` on."""
        tries = min(TRIES, len(self))
        for candidate in range(index, index + tries):
            sample = self.try_read(candidate % len(self), shrink)
            if sample is not None:
                return sample
        raise DataError(
            f"{tries} images in a row cannot be read, the first of them {self.names[index]} "
            f"({self.unreadable[self.names[index]]}). Check that the disk is mounted and the data "
            "set complete."
        )
