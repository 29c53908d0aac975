"""Images in a folder, by index, and what to do about those that cannot be read.

`ImageFolder`, `ImageArrays` and `PackedImages` are alike to those who read them. This file does not
import torch before the first image is read.
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

# Neighbors tried in place of an unreadable image; this many in a row are not an accident.
TRIES = 100

logger = logging.getLogger(__name__)


class Images(Protocol):
    """Images by index, with their classes where these are known."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def labels(self) -> NDArray[np.int64]:
        """(n,) place of each image's class in `classes`, -1 without classes."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def read(self, index: int, shrink: Shrink | None = None) -> tuple[Tensor, int]:
        """The pixels (3, H, W) uint8 and the label; a DataError names an image that is broken.

        `shrink` says how many times smaller they may come; other formats than JPEG come whole.
        """


class ImageFolder:
    """The images below a folder at any depth: JPEG, PNG, WebP; sorted by name.

    The folders in `root` are the classes, sorted; `labelled=False` takes images from anywhere and
    gives all the label -1.
    """

    def __init__(self, root: Path | str, labelled: bool = True) -> None:
        self.root = Path(root)
        self.names, self.labels, self.classes = list_images(root, labelled)

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int, shrink: Shrink | None = None) -> tuple[Tensor, int]:
        """The pixels (3, H, W) uint8 and the label of an image."""
        path = self.root / self.names[index]
        return as_tensor(decode_image(read_file(path), str(path), shrink)), int(self.labels[index])


class ReadableImages:
    """Images of which the unreadable ones are skipped, counted and named.

    In place of an unreadable image stands the next readable one. This is decided by the files
    alone, so processes, workers and epochs agree. Each process, a loader's as well, warns once of
    each such image that it meets, and training writes that to warnings/ in the run folder.
    """

    def __init__(self, images: Images) -> None:
        self.images = images
        self.names, self.labels, self.classes = images.names, images.labels, images.classes
        self.unreadable: dict[str, str] = {}  # name and reason, as far as met by this process

    def __len__(self) -> int:
        return len(self.images)

    def try_read(self, index: int, shrink: Shrink | None = None) -> tuple[Tensor, int] | None:
        """The pixels and the label of this very image, or nothing where it cannot be read."""
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
        """The pixels (3, H, W) uint8 and the label of the first readable image from `index` on."""
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
