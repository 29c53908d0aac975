"""Colors of layers with textures that move: one kernel, or a plain operation after the other."""

from __future__ import annotations

from torch import Tensor

from overt.ops.dispatch import use_kernels
from overt.ops.layers.plain import shade_plain


def shade(
    layers: Tensor,  # (fields of Layer, B, L, T)
    texture_map: Tensor,  # (B, L, 6) surface to texels: x from x, y, 1, then y
    texture_index: Tensor,  # (B, L) int32: the texture of each layer
    color: Tensor,  # (B, L, 6) gain and offset of each channel
    light: Tensor,  # (B, T, 12): gain, wave (strength, x, y, phase), spots (strength, x, y, 1/s)
    shutter: Tensor,  # (B,) of a frame's duration in which the texture moves
    textures: Tensor,  # (K, S, S) int32: red, green and blue in the lower bytes
    size: tuple[int, int],
) -> Tensor:
    """Return the colors (B, T, 3, H, W) of the foremost layers, float32 in 0..255, in their light.

    Without a gradient.
    """
    inputs = (layers, texture_map, texture_index, color, light, shutter, textures, size)
    if not use_kernels("layers", layers):
        return shade_plain(*inputs)
    from overt.ops.layers.kernels import shade_fused

    return shade_fused(*inputs)
