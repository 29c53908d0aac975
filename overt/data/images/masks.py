"""Masks of one object in a picture, as tools write them: black and white, labels, or a cut-out."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from overt.data.images.decode import FORMATS, read_file
from overt.data.pictures import BROKEN
from overt.errors import DataError


def read_mask_file(path: Path) -> NDArray[np.bool_]:
    """Return which pixels (H, W) of a picture a mask selects."""
    try:
        with Image.open(io.BytesIO(read_file(path)), formats=FORMATS) as stored:
            return mask_of_image(ImageOps.exif_transpose(stored))
    except BROKEN as error:
        is_other = isinstance(error, UnidentifiedImageError)  # its text names an object of Python
        reason = "another format, or damaged" if is_other else error
        raise DataError(
            f"{path}: not a readable JPEG, PNG or WebP ({reason}); save the mask again"
        ) from error


def mask_of_image(image: Image.Image) -> NDArray[np.bool_]:
    """Return the person (H, W) in a mask of any mode: what is not transparent, or not black."""
    if image.has_transparency_data:
        alpha = np.asarray(image.convert("RGBA"))[..., 3]
        if alpha.min() < alpha.max():  # a cut-out; its edge belongs to whatever covers more of it
            return np.asarray(alpha > alpha.max() / 2)
    levels = _mask_levels(image)
    low, high = levels.min(), levels.max()
    # Of two levels the lower one is the background, even where it is not black.
    is_binary = low < high and bool(((levels == low) | (levels == high)).all())
    return np.asarray(levels > (low if is_binary else 0))


def _mask_levels(image: Image.Image) -> NDArray[np.int64]:
    """Return a number for each pixel (H, W), at the depth of the file."""
    if image.mode in ("1", "L") or image.mode.startswith("I"):
        return np.asarray(image, np.int64)
    brightness = np.asarray(image.convert("RGB"), np.int64).max(axis=2)
    if image.mode == "P" and not brightness.any():  # labels, whose palette nobody has filled in
        return np.asarray(image, np.int64)
    return np.asarray(brightness)
