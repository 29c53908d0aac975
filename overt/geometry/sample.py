"""Bilinear sampling at pixel positions: integer coordinates are pixel centres, (0, 0) the first.

Letters: r radius, P = 2r + 1 samples and S = 2r + 2 pixels along each side of a square.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def bilinear_sample(
    images: Tensor,  # (B, C, H, W)
    points_xy: Tensor,  # (B, ..., 2) pixels
    padding: Literal["border", "zeros"] = "border",
) -> Tensor:
    """The values of the images at any positions, (B, C, ...).

    Outside the image "border" repeats the nearest pixel and "zeros" reads zero.
    """
    height, width = images.shape[-2:]
    x, y = points_xy.flatten(1, -2).unbind(-1)
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], dim=-1)
    values = F.grid_sample(images, grid.unsqueeze(2), padding_mode=padding, align_corners=False)
    return values.view(*values.shape[:2], *points_xy.shape[1:-1])


def resize_bilinear(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images (B, C, H, W) at another size, the first and last pixels staying where they are.

    As two matrix products along the axes, whose gradient is two more: the scattered additions of
    torch's interpolation take longer than the convolutions around it.
    """
    height, width = images.shape[-2:]
    if (height, width) == size:
        return images
    values = images.permute(0, 2, 3, 1)  # (B, H, W, C): dense where memory is channels-last
    values = interpolation_matrix(width, size[1], values) @ values
    values = interpolation_matrix(height, size[0], values) @ values.flatten(2)
    return torch.unflatten(values, 2, (size[1], -1)).permute(0, 3, 1, 2)


def interpolation_matrix(length: int, new_length: int, like: Tensor) -> Tensor:
    """(new_length, length): what each new place takes of each old one, corners aligned."""
    step = (length - 1) / max(new_length - 1, 1)
    places = torch.arange(new_length, device=like.device, dtype=torch.float64) * step
    cells = torch.arange(length, device=like.device, dtype=torch.float64)
    return (1 - (places[:, None] - cells).abs()).clamp(min=0).to(like.dtype)


class SquareTaps(nn.Module):
    """Which pixels, mixed by which weights, give P x P samples one pixel apart around a centre.

    All samples share the fraction of their centre, so that S x S pixels serve them all, and
    `mix_taps` makes the samples with two small products. Being linear, it can as well be applied
    to products with the pixels. Outside the image the nearest pixel is repeated.
    """

    offsets: Tensor  # (S,)
    lower: Tensor  # (P, S): sample p takes (1 - fraction) of pixel p
    upper: Tensor  # (P, S): and the fraction of pixel p + 1

    def __init__(self, radius: int) -> None:
        super().__init__()
        self.radius = radius
        samples, pixels = 2 * radius + 1, 2 * radius + 2
        # Buffers, not made on each call: this runs in the inner loop.
        self.register_buffer("offsets", torch.arange(pixels) - radius, persistent=False)
        self.register_buffer("lower", torch.eye(samples, pixels), persistent=False)
        self.register_buffer("upper", torch.eye(pixels)[1:], persistent=False)

    def forward(self, centres_xy: Tensor, sizes_xy: Tensor) -> tuple[Tensor, Tensor]:
        """Pixel numbers `y * width + x`, (..., S*S), and weights along x and y, (..., 2, P, S).

        Of the pixels, x varies slowest. `sizes_xy`, (width, height) as integers, broadcasts
        against `centres_xy`, (..., 2).
        """
        floor = centres_xy.floor()
        fraction = (centres_xy - floor)[..., None, None]
        weights = self.lower * (1 - fraction) + self.upper * fraction
        pixels = floor.long().unsqueeze(-1) + self.offsets  # (..., 2, S)
        pixels = torch.minimum(pixels.clamp(min=0), sizes_xy.unsqueeze(-1) - 1)
        x, y = pixels.unbind(-2)
        numbers = y.unsqueeze(-2) * sizes_xy[..., :1, None] + x.unsqueeze(-1)  # (..., S, S)
        return numbers.flatten(-2), weights


def mix_taps(weights: Tensor, values: Tensor) -> Tensor:
    """Weights (..., 2, P, S) of `SquareTaps` on values (..., S*S, D): samples (..., P*P, D).

    Of the samples, as of the values, x varies slowest.
    """
    along_x, along_y = weights.unbind(-3)
    pixels = weights.shape[-1]
    values = torch.unflatten(values, -2, (pixels, pixels)).flatten(-2)  # (..., S, S * D)
    values = torch.unflatten(along_x @ values, -1, (pixels, -1))  # (..., P, S, D)
    return (along_y.unsqueeze(-3) @ values).flatten(-3, -2)
