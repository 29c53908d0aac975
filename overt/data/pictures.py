"""Convert decoded pictures to three channels of 8 bits, upright on request, and to a palette."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

# What Pillow raises for broken files, depending on format and location of the damage.
BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    EOFError,
    OverflowError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


def with_palette(pixels: NDArray[np.uint8]) -> Image.Image:
    """Return a picture, (H, W, 3), in 256 colors, as GIF stores it.

    Pillow's default method takes fifty times as long, and gives small things, such as tracks
    that are drawn into a photograph, the colors of their surroundings.
    """
    return Image.fromarray(pixels).quantize(method=Image.Quantize.FASTOCTREE)


def to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Return the pixels (H, W, 3) of an opened picture; of 16 bits the upper 8.

    Gray becomes three equal channels, and transparency is dropped.
    """
    if image.mode.startswith("I"):  # 16-bit gray, which `convert` would cut off at 255
        gray = (np.asarray(image).astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    if image.mode == "F":  # `convert` would turn a picture in 0..1 black
        raise ValueError("its pixels are floats, whose white is not defined; save 8 or 16 bits")
    return np.array(image.convert("RGB"))


def to_upright_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Return pixels like `to_rgb`, with the EXIF orientation applied; damaged EXIF is ignored."""
    image.load()  # outside `try`: pixels that cannot be decoded are an error
    try:
        upright = ImageOps.exif_transpose(image)
    except BROKEN:
        upright = image
    return to_rgb(upright)
