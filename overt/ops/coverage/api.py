"""How much of each pixel a mesh leaves uncovered, with gradients: the sum over its faces.

A face covers sigmoid(-d / softness) of a pixel at signed distance d, negative inside. The plain
function is the definition, for any device; on CUDA one program draws a face without any list.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overt.ops.coverage.plain import log_uncovered_plain
from overt.ops.dispatch import use_kernels


def log_uncovered(
    corners: Tensor,  # (B, F, 3, 2) pixels
    drawn: Tensor,  # (B, F) bool: the other faces cover nothing
    size: tuple[int, int],
    softness: float,
    growth: float,
    capacity: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum over faces of log(1 - coverage), (B, H, W); and how many pairs were needed.

    A pixel sees no face whose box is further away than `growth`. `capacity` is the length of the
    list of pairs of face and pixel, see `pair_up`; kernels keep no list and need none.
    """
    if not use_kernels("coverage", corners):
        return log_uncovered_plain(corners, drawn, size, softness, growth, capacity)
    from overt.ops.coverage.kernels import log_uncovered_fused

    total: Tensor = log_uncovered_fused(corners, drawn, *size, softness, growth)
    return total, torch.zeros((), dtype=torch.int64, device=corners.device)
