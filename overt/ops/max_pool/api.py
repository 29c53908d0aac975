"""The largest number in each window: by Triton kernels channels last, else by torch.

Where torch's gradient has to be repeatable, `max_pool_plain` replaces it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from overt.ops.dispatch import replaces, use_kernels
from overt.ops.max_pool.plain import max_pool_plain

LARGEST = 15  # side of a window: a byte numbers its pixels


def max_pool(images: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """`torch.nn.functional.max_pool2d` of images (B, C, H, W)."""
    is_channels_last = images.is_contiguous(memory_format=torch.channels_last)
    fits = size <= LARGEST and padding <= size // 2 and min(images.shape[2:]) + 2 * padding >= size
    if is_channels_last and fits and use_kernels("max_pool", images):
        from overt.ops.max_pool.kernels import max_pool_fused

        keeps = torch.is_grad_enabled() and images.requires_grad
        result: Tensor = max_pool_fused(images, size, stride, padding, keeps)[0]
        return result
    if replaces("max_pool", images):
        return max_pool_plain(images, size, stride, padding)
    return F.max_pool2d(images, size, stride, padding)
