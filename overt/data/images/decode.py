"""Decode image files: JPEG, PNG and WebP in any color mode, always to upright uint8 RGB.

torch is imported when a tensor is first requested: listing and packing do not need it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from overt.data.pictures import BROKEN, to_rgb
from overt.errors import DataError
from overt.files import bounds

if TYPE_CHECKING:
    from torch import Tensor

FORMATS = ("JPEG", "PNG", "WEBP")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")

_ORIENTATION = 0x0112  # tag of EXIF
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


_SIDEWAYS = (
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)

Shrink = Callable[[int, int], int]  # of the height and width of an image: 1, 2, 4 or 8


def read_file(path: Path) -> bytes:
    """Return the bytes of a file; raise a DataError if it cannot be read."""
    try:
        return bounds.read_file(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error


def decode_image(data: bytes, name: str, shrink: Shrink | None = None) -> NDArray[np.uint8]:
    """Decode an image to pixels (H, W, 3); raise a DataError with `name` if it is broken.

    Gray becomes three equal channels, 16 bits become the upper 8, transparency is dropped (like
    Pillow and common loaders), and the EXIF orientation is applied. `shrink` gets the upright
    height and width of any image and returns by which factor it may be reduced while decoding;
    only JPEGs are.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            turn = _UPRIGHT.get(_orientation(image))
            if shrink is not None:
                _reduce(image, shrink, turn in _SIDEWAYS)
            upright = image if turn is None else image.transpose(turn)
            return to_rgb(upright)
    except BROKEN as error:
        raise _unreadable(name, error, len(data)) from error


def upright_size(path: Path) -> tuple[int, int]:
    """Return height and width of what `decode_image` returns, by the header of a file alone."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            is_sideways = _UPRIGHT.get(_orientation(image)) in _SIDEWAYS
            return (width, height) if is_sideways else (height, width)
    except BROKEN as error:
        raise _unreadable(str(path), error, path.stat().st_size) from error


def _unreadable(name: str, error: Exception, size: int) -> DataError:
    reason, advice = str(error) or type(error).__name__, "Get the file again"
    if isinstance(error, UnidentifiedImageError):
        reason = f"its {size} bytes are not a JPEG, PNG or WebP"
        advice = "Save it as one of these"
    return DataError(
        f"{name}: not a readable image ({reason}). {advice}, or remove it from the data set."
    )


def _reduce(image: Image.Image, shrink: Shrink, is_sideways: bool) -> None:
    """Let the decoder return fewer pixels, which skips parts of the transform."""
    width, height = image.size
    factor = shrink(width, height) if is_sideways else shrink(height, width)
    if factor > 1 and image.format == "JPEG":
        # Pillow reduces by at most `side // requested`: rounded up, an odd side would stay whole.
        image.draft(None, (max(width // factor, 1), max(height // factor, 1)))


def _orientation(image: Image.Image) -> int:
    """Return the orientation 1 to 8; a damaged EXIF block is ignored."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except BROKEN:
        return 1
    return value if isinstance(value, int) else 1


def as_tensor(pixels: NDArray[np.uint8]) -> Tensor:
    """Return pixels (H, W, 3) as (3, H, W), still interleaved in memory, which resizes fastest."""
    import torch

    return torch.from_numpy(pixels).permute(2, 0, 1)
