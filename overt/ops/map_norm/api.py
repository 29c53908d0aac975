"""Instance normalization of feature maps, and the ReLU and the sum that follow it in a residual
network.

Letters: M images, C channels; a map is one channel of an image. `normalize_maps_plain` is the
definition, for any device; the Triton twin reads and writes maps channels last, as convolutions on
tensor cores do, and keeps its input and two numbers of each map for the backward pass.
"""

from __future__ import annotations

from torch import Tensor

from overt.ops.dispatch import use_kernels
from overt.ops.map_norm.plain import normalize_maps_plain


def normalize_maps(
    x: Tensor,  # (M, C, H, W)
    relu: bool = True,
    residual: Tensor | None = None,  # (M, C, H, W)
) -> Tensor:
    """Each map with mean 0 and variance 1, then ReLU; with a `residual` that is added, and then
    ReLU again."""
    if not use_kernels("map_norm", x):
        return normalize_maps_plain(x, relu, residual)
    from overt.ops.map_norm.kernels import map_moments, normalized_maps

    result: Tensor = normalized_maps(x, *map_moments(x.detach()), relu, residual)
    return result
