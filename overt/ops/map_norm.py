"""Instance normalisation of feature maps, and the ReLU and the sum that follow it in a residual
network.

Letters: M images, C channels; a map is one channel of an image. `normalize_maps_plain` is the
definition, for any device; the Triton twin reads and writes maps channels last, as convolutions on
tensor cores do, and keeps its input and two numbers of each map for the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from overt.ops import HAS_TRITON

EPS = 1e-5


def normalize_maps_plain(x: Tensor, relu: bool = True, residual: Tensor | None = None) -> Tensor:
    """See `normalize_maps`."""
    # `F.instance_norm` is slower on the CPU, and there its gradient is wrong for a single image
    # whose gradient comes channels last.
    y = F.group_norm(x, x.shape[1], eps=EPS)
    y = F.relu(y) if relu else y
    return y if residual is None else F.relu(residual + y)


def normalize_maps(
    x: Tensor,  # (M, C, H, W)
    relu: bool = True,
    residual: Tensor | None = None,  # (M, C, H, W)
) -> Tensor:
    """Each map with mean 0 and variance 1, then ReLU; with a `residual` that is added, and then
    ReLU once more."""
    if not (HAS_TRITON and x.is_cuda and x.dtype != torch.float64):
        return normalize_maps_plain(x, relu, residual)
    from overt.ops.map_norm_kernels import map_moments, normalized_maps

    result: Tensor = normalized_maps(x, *map_moments(x.detach()), relu, residual)
    return result
