"""The largest number in each window, as a maximum over shifted images."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def max_pool_plain(images: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """See `max_pool`. Of equal numbers the first in the window has the gradient."""
    padded = F.pad(images, (padding,) * 4, value=float("-inf"))
    height, width = ((side - size) // stride * stride + 1 for side in padded.shape[2:])
    shifted = [
        padded[:, :, top : top + height : stride, left : left + width : stride]
        for top in range(size)
        for left in range(size)
    ]
    return torch.stack(shifted).max(dim=0).values
