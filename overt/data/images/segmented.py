"""Images with a class for every pixel: files of a folder, and masks of the same names beside them.

    ROOT/images/a/cat.jpg    ROOT/masks/a/cat.png

A mask is a PNG whose values, or palette entries, are the numbers of the classes; 255 is ignored.
`ROOT/train` and `ROOT/test` may each have these two folders.
"""

from __future__ import annotations

import io
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from overt.data.images.decode import as_tensor, decode_image, read_file
from overt.data.images.files import list_images
from overt.data.pictures import BROKEN
from overt.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = 255
HELD_OUT = 5  # one of this many images is held out of a folder without splits
MODES = ("1", "L", "P", "I", "I;16")
TESTS = ("test", "val", "valid", "validation")


class SegmentedImages:
    """Images and their masks, by index."""

    def __init__(self, root: Path | str, chosen: NDArray[np.int64] | None = None) -> None:
        self.root = Path(root)
        for folder in ("images", "masks"):
            if not (self.root / folder).is_dir():
                raise DataError(
                    f"{self.root / folder} is not a directory; expected images in "
                    f"{self.root}/images and a PNG of the same name for each in {self.root}/masks"
                )
        listed = list_images(self.root / "images", labeled=False).names
        masks = list_images(self.root / "masks", labeled=False).names
        by_stem = {_stem(name): name for name in masks}
        indices = range(len(listed)) if chosen is None else chosen.tolist()
        self.names = [listed[index] for index in indices]
        lacking = [name for name in self.names if _stem(name) not in by_stem]
        if lacking:
            raise DataError(
                f"{self.root}: {len(lacking)} images have no mask, such as images/{lacking[0]}; "
                f"expected masks/{_stem(lacking[0])}.png. Add the masks, or remove these images."
            )
        self.masks = [by_stem[_stem(name)] for name in self.names]

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Return pixels (3, H, W) uint8 and classes (H, W) int64 of an image."""
        import torch

        path = self.root / "images" / self.names[index]
        pixels = as_tensor(decode_image(read_file(path), str(path)))
        mask = read_mask(self.root / "masks" / self.masks[index])
        if mask.shape != tuple(pixels.shape[1:]):
            raise DataError(
                f"{self.root}: the mask {self.masks[index]} has {mask.shape[0]} x {mask.shape[1]} "
                f"pixels, its image {self.names[index]} {pixels.shape[1]} x {pixels.shape[2]}; "
                "save both in one size"
            )
        return pixels, torch.from_numpy(mask)


def open_segmented(root: Path | str) -> tuple[SegmentedImages, SegmentedImages]:
    """Return training and test images: by folder, otherwise every fifth is a test image."""
    root = Path(root)
    if (root / "train").is_dir():
        return SegmentedImages(root / "train"), SegmentedImages(scored_folder(root))
    count = len(SegmentedImages(root))
    order = np.random.default_rng(0).permutation(count)
    if count < 2:
        raise DataError(f"{root}: {count} image; at least 2 are needed, one of them to score")
    size = max(1, count // HELD_OUT)
    scored, learned = np.sort(order[:size]), np.sort(order[size:])
    return SegmentedImages(root, learned), SegmentedImages(root, scored)


def scored_folder(root: Path) -> Path:
    """Return the folder of test images next to `train`."""
    for name in TESTS:
        if (root / name).is_dir():
            return root / name
    raise DataError(f"{root} has a folder train, but none of {', '.join(TESTS)}; add one of them")


def read_mask(path: Path) -> NDArray[np.int64]:
    """Return the classes (H, W) of a mask, which has one channel or a palette."""
    try:
        with Image.open(io.BytesIO(read_file(path)), formats=("PNG",)) as image:
            mode, values = image.mode, np.asarray(image)
    except BROKEN as error:
        raise DataError(f"{path}: not a readable PNG ({error}); save the mask again") from error
    if mode not in MODES:
        raise DataError(
            f"{path}: a mask of mode {mode}; expected one channel or a palette whose values are "
            "the numbers of the classes, and 255 where there is none"
        )
    if values.min(initial=0) < 0 or values.max(initial=0) > IGNORED:
        raise DataError(
            f"{path}: classes from {values.min()} to {values.max()}; expected 0 to 254, and 255 "
            "for pixels without one"
        )
    return values.astype(np.int64)


def _stem(name: str) -> str:
    return PurePosixPath(name).with_suffix("").as_posix()
