"""Images and sequences at another size: torch's interpolation, or one with repeatable gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from overt.ops.dispatch import replaces
from overt.ops.resize.plain import resize_plain


def resize(
    images: Tensor,  # (B, C, H, W), or (B, C, L) with mode="linear"
    size: Sequence[int] | None = None,
    *,
    scale_factor: Sequence[float] | None = None,  # in place of the size
    mode: str = "bilinear",
    align_corners: bool = False,
    antialias: bool = False,
) -> Tensor:
    """`torch.nn.functional.interpolate` in the modes linear, bilinear and bicubic."""
    options: dict[str, Any] = {"mode": mode, "align_corners": align_corners, "antialias": antialias}
    if replaces("resize", images):
        return resize_plain(images, size, scale_factor, **options)
    factors = None if scale_factor is None else list(scale_factor)
    return F.interpolate(images, None if size is None else list(size), factors, **options)
