"""Group normalization of feature maps, and the addition and the ReLU that follow it in a residual
network.

Letters: M images, C channels. `group_norm_plain` is the definition, for any device; the Triton twin
reads and writes maps channels last, as convolutions on tensor cores do. It computes in float32 and
returns the dtype of its input, so that under autocast maps stay 16 bit.
"""

from __future__ import annotations

from torch import Tensor

from overt.ops.dispatch import use_kernels
from overt.ops.group_norm.plain import group_norm_plain


def group_norm(
    x: Tensor,  # (M, C, H, W)
    weight: Tensor,  # (C,)
    bias: Tensor,  # (C,)
    groups: int,
    eps: float = 1e-5,
    relu: bool = False,
    residual: Tensor | None = None,  # (M, C, H, W)
) -> Tensor:
    """Normalize each group of channels of an image, scale and shift each channel; add `residual`
    if it is given, then apply ReLU if `relu`. The result has the dtype of x."""
    if not use_kernels("group_norm", x, width=x.shape[1] // groups):
        return group_norm_plain(x, weight, bias, groups, eps, relu, residual)
    from overt.ops.group_norm.kernels import group_norm_fused

    result: Tensor = group_norm_fused(x, weight, bias, groups, eps, relu, residual)[0]
    return result
