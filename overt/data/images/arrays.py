"""Images in a NumPy archive: one .npz with an array of images and one of labels, all in memory."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.data.images.decode import Shrink
from overt.data.images.files import UNLABELED, Names
from overt.errors import DataError, nearest
from overt.files.bounds import open_arrays

# Every number up to the largest label is a class. Even a few images of ImageNet-21k, or of a face
# data set, stay below this; numbers that are not classes (ids, hashes, times) do not.
_CLASSES = 100_000
_CLASSES_PER_IMAGE = 10


class ImageArrays:
    """The images (n, H, W), (n, H, W, C) or (n, C, H, W) uint8 of an archive, C 1, 3 or 4.

    Labels are integers (n,) or (n, 1) from 0 on; `labels=None` reads an unlabeled set. The keys can
    be chosen: `images="train_images"`. Object arrays (pickles) are rejected.
    """

    def __init__(
        self, path: Path | str, images: str = "images", labels: str | None = "labels"
    ) -> None:
        self.path = Path(path)
        arrays = _load(self.path, images, labels)
        # As a tensor, because torch shares its memory with loader processes instead of copying it.
        self.images = torch.from_numpy(_interleaved(self.path, images, arrays[0]))  # (n, H, W, 3)
        self.labels = _check_labels(self.path, labels, arrays[1], len(self.images))
        self.classes = tuple(str(label) for label in range(int(self.labels.max()) + 1))
        self.names = Names.pack(f"{self.path.name}[{index}]" for index in range(len(self.images)))

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int, shrink: Shrink | None = None) -> tuple[Tensor, int]:
        """Return the pixels (3, H, W) uint8 and the label of an image."""
        return self.images[index].permute(2, 0, 1), int(self.labels[index])


def _load(path: Path, images: str, labels: str | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    try:
        loaded = open_arrays(path)
        if isinstance(loaded, np.ndarray):
            raise DataError(f"{path}: holds one array; expected an .npz with {images!r}.")
        with loaded as archive:
            for key in (images, labels):
                if key is not None and key not in archive.files:
                    names = ", ".join(archive.files) or "nothing"
                    raise DataError(
                        f"{path}: has no array {key!r}{nearest(key, archive.files)}; found "
                        f"{names}. Name the arrays to read; a set without labels is read with "
                        "data.labeled=false (`overt features`: --unlabeled; in Python labels=None)."
                    )
            return archive[images], None if labels is None else archive[labels]
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: no such file. Expected: an .npz with images (n, H, W, 3) uint8 "
            f"and labels (n,), as by `np.savez(path, {images}=..., {labels or 'labels'}=...)`."
        ) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: not a readable .npz archive of plain arrays ({error}). Write it again with "
            "np.savez, images as uint8."
        ) from error


def _interleaved(path: Path, key: str, images: NDArray[Any]) -> NDArray[np.uint8]:
    """Return any allowed layout as (n, H, W, 3)."""
    shape = images.shape
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in shape:
        raise DataError(
            f"{path}: {key} has shape {shape} and type {images.dtype}; expected uint8 of shape "
            "(n, H, W), (n, H, W, C) or (n, C, H, W), C 1, 3 or 4, and at least one image."
        )
    if images.ndim == 3:
        images = images[..., None]
    elif shape[3] not in (1, 3, 4) and shape[1] in (1, 3, 4):
        images = images.transpose(0, 2, 3, 1)
    if images.shape[3] not in (1, 3, 4):
        raise DataError(
            f"{path}: {key} has shape {shape}; expected 1, 3 or 4 channels as the last or the "
            "second axis."
        )
    if images.shape[3] == 1:
        images = np.repeat(images, 3, axis=3)
    return np.ascontiguousarray(images[..., :3])


def _check_labels(
    path: Path, key: str | None, labels: NDArray[Any] | None, count: int
) -> NDArray[np.int64]:
    if labels is None:
        return np.full(count, UNLABELED, np.int64)
    flat = labels.reshape(-1)
    if flat.dtype.kind not in "iu" or len(flat) != count or flat.min() < 0:
        raise DataError(
            f"{path}: {key} has shape {labels.shape} and type {labels.dtype}; expected {count} "
            "whole numbers from 0 on, one for each image."
        )
    allowed = max(_CLASSES, _CLASSES_PER_IMAGE * count)
    if (largest := int(flat.max())) >= allowed:
        raise DataError(
            f"{path}: the largest of {key} is {largest}, with {len(np.unique(flat))} distinct ones "
            f"for {count} images; labels count from 0 and must be below {allowed}. Number the "
            "classes from 0, as np.unique(labels, return_inverse=True)[1] does."
        )
    return flat.astype(np.int64)
