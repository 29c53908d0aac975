"""Brightness, contrast, saturation and hue of frames of 8 bits, (n, 3, H, W)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from overt.ops.jitter.operators import Jitter


def jitter_plain(frames: Tensor, jitters: Sequence[Jitter]) -> Tensor:
    """The definition of `jitter`, frame by frame."""
    return torch.stack([jitter_frame(*pair) for pair in zip(frames, jitters, strict=True)])


def jitter_frame(frame: Tensor, jitter: Jitter) -> Tensor:
    """Change brightness, contrast, saturation and hue of an image (3, H, W) uint8.

    The first three are those of Pillow's ImageEnhance, and so torchvision's on Pillow images: to
    the bit on x86, while on ARM Pillow may cut a result that is a whole number to the one below.
    Hue turns by the exact angle, where Pillow rounds hue and saturation to 8 bits.
    """
    image = frame.float()
    for operator in jitter.order:
        if operator == "brightness":
            image = _away_from(0.0, image, jitter.brightness)
        elif operator == "contrast":
            mean = torch.floor(_luminance(image).mean() + 0.5)
            image = _away_from(mean, image, jitter.contrast)
        elif operator == "saturation":
            image = _away_from(_luminance(image), image, jitter.saturation)
        else:
            image = _rotate_hue(image, jitter.hue)
    return image.to(torch.uint8)


def _away_from(base: Tensor | float, image: Tensor, factor: float) -> Tensor:
    """Multiply the distance to `base`, cut to 8 bits without rounding as Pillow does."""
    return image.sub(base).mul_(factor).add_(base).clamp_(0, 255).floor_()


def _luminance(image: Tensor) -> Tensor:
    """Pillow's luminance (H, W) of an image (3, H, W), whole numbers; exact in float32."""
    red, green, blue = image
    return torch.floor((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536)


def _rotate_hue(image: Tensor, rotation: float) -> Tensor:
    """Rotate the hue of an image (3, H, W) by a fraction of the circle, to integers again."""
    red, green, blue = image
    value = image.amax(dim=0)
    chroma = value - image.amin(dim=0)
    # Masks multiplied, since on a CPU a choice for each pixel costs more.
    is_red = value == red
    is_green = (value == green) & ~is_red
    is_blue = ~(is_red | is_green)
    sixth = (green - blue).mul_(is_red)
    sixth.add_((blue - red).mul_(is_green)).add_((red - green).mul_(is_blue))
    # Whole numbers: a chroma below 1 is 0, where there is nothing to divide.
    sixth.div_(chroma.clamp(min=1)).add_(is_green, alpha=2).add_(is_blue, alpha=4)
    rotated = torch.empty_like(image)
    for channel, start in zip(rotated, (5.0, 3.0, 1.0), strict=True):
        position = sixth + (start + 6 * rotation)
        position.sub_(torch.floor(position / 6), alpha=6)  # modulo 6
        torch.minimum(position, 4 - position, out=channel)
        channel.clamp_(0, 1).mul_(chroma).neg_().add_(value)
    return rotated.round_()
