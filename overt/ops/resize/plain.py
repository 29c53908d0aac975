"""Resizing as a matrix product along each axis, whose gradient is one more of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def resize_plain(
    images: Tensor,  # (B, C, H, W), or (B, C, L)
    size: Sequence[int] | None,
    scale_factor: Sequence[float] | None,
    **options: Any,
) -> Tensor:
    """See `resize`."""
    with torch.autocast(images.device.type, enabled=False):
        for axis in range(2, images.ndim):
            target_size: dict[str, Any]
            if size is not None:
                target_size = {"size": [1, size[axis - 2]]}
            else:
                assert scale_factor is not None, "neither a size nor a factor"
                target_size = {"scale_factor": [1.0, scale_factor[axis - 2]]}
            matrix = _matrix(images.shape[axis], images, target_size, options)
            images = (matrix @ images.movedim(axis, -2)).movedim(-2, axis)
    return images


@torch.no_grad()
def _matrix(
    length: int, images: Tensor, target_size: dict[str, Any], options: dict[str, Any]
) -> Tensor:
    """(new length, length): what each new pixel along an axis takes of each old one.

    Resizing is linear, and works along one axis after the other: torch resizes the unit vectors.
    """
    units = torch.eye(length, device=images.device)[None]  # (1, vectors, length)
    if images.ndim == 3:
        target_size = {name: values[1:] for name, values in target_size.items()}
    else:
        units = units.unsqueeze(2)  # along the width of images of height 1
    return F.interpolate(units, **target_size, **options).view(length, -1).mT.to(images.dtype)
