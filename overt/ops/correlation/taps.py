"""The pixels and weights of a square of bilinear samples around a position.

Letters: r radius, P = 2r + 1 samples and S = 2r + 2 pixels along each side of the square. Integer
coordinates are pixel centers, (0, 0) the first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class SquareTaps(nn.Module):
    """Which pixels, mixed by which weights, give P x P samples one pixel apart around a center.

    All samples share the fraction of their center, so that S x S pixels serve them all, and
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
    pixels = weights.shape[-1]
    if not values.is_cuda:
        # Two weights of a row are not zero, and processors are slow at products so small: a
        # hundred thousand of them in an iteration took longer than the rest of it.
        along_x, along_y = weights[..., 0, 1].unbind(-1)  # the fractions, (...)
        values = torch.unflatten(values, -2, (pixels, pixels))  # (..., S, S, D)
        values = _between(values, along_x[..., None, None, None], -3)
        return _between(values, along_y[..., None, None, None], -2).flatten(-3, -2)
    along_x, along_y = weights.unbind(-3)
    values = torch.unflatten(values, -2, (pixels, pixels)).flatten(-2)  # (..., S, S * D)
    values = torch.unflatten(along_x @ values, -1, (pixels, -1))  # (..., P, S, D)
    return (along_y.unsqueeze(-3) @ values).flatten(-3, -2)


def _between(values: Tensor, fraction: Tensor, dim: int) -> Tensor:
    """Values a fraction of the way from each pixel to the next along a dimension."""
    is_plain = values.dtype == fraction.dtype and not fraction.requires_grad
    if not is_plain or torch.compiler.is_compiling():
        count = values.shape[dim] - 1
        first, second = values.narrow(dim, 0, count), values.narrow(dim, 1, count)
        return first * (1 - fraction) + second * fraction
    result: Tensor = _Between.apply(values, fraction, dim)  # type: ignore[no-untyped-call]
    return result


class _Between(torch.autograd.Function):
    """The same in one pass over the values, and two over their gradient, instead of three and
    seven."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, fraction: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(fraction)
        ctx.dim = dim
        count = values.shape[dim] - 1
        first, second = values.narrow(dim, 0, count), values.narrow(dim, 1, count)
        return torch.lerp(first, second, fraction)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (fraction,) = ctx.saved_tensors
        count = gradient.shape[ctx.dim]
        shape = list(gradient.shape)
        shape[ctx.dim] += 1
        result = gradient.new_empty(shape)
        torch.mul(gradient, 1 - fraction, out=result.narrow(ctx.dim, 0, count))
        result.narrow(ctx.dim, count, 1).zero_()
        result.narrow(ctx.dim, 1, count).addcmul_(gradient, fraction)
        return result, None, None
