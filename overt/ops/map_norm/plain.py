"""Instance normalization of feature maps, and the ReLU and the sum that follow it in a residual
network.

Letters: M images, C channels; a map is one channel of an image.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

EPS = 1e-5


def normalize_maps_plain(x: Tensor, relu: bool = True, residual: Tensor | None = None) -> Tensor:
    """See `normalize_maps`."""
    # `F.instance_norm` is slower on the CPU, and there its gradient is wrong for a single image
    # whose gradient comes channels last.
    y = F.group_norm(x, x.shape[1], eps=EPS)
    y = F.relu(y) if relu else y
    return y if residual is None else F.relu(residual + y)
