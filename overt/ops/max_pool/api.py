"""The largest number in each window: torch's, or one with a repeatable gradient."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from overt.ops.dispatch import replaces
from overt.ops.max_pool.plain import max_pool_plain


def max_pool(images: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """`torch.nn.functional.max_pool2d` of images (B, C, H, W)."""
    if replaces("max_pool", images):
        return max_pool_plain(images, size, stride, padding)
    return F.max_pool2d(images, size, stride, padding)
