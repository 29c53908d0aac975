"""Group normalization of feature maps, and the addition and the ReLU that follow it in a residual
network.

Letters: M images, C channels.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def group_norm_plain(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float = 1e-5,
    relu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """See `group_norm`."""
    y = F.group_norm(x, groups, weight, bias, eps)
    y = y if residual is None else y + residual
    y = F.relu(y) if relu else y
    return y.to(x.dtype)  # autocast on CUDA normalizes 16-bit maps to float32 ones
