"""Multi-scale deformable attention: each query reads a few positions of a feature pyramid.

`deformable_plain` is the definition, for any device and for export; the Triton twin computes the
same on CUDA and keeps nothing but its inputs and its result for the backward pass.
"""

from __future__ import annotations

from torch import Tensor

from overt.ops.deformable.plain import Sizes, deformable_plain
from overt.ops.dispatch import use_kernels


def deformable(
    values: Tensor,  # (B, S, H, D)
    reference_xy: Tensor,  # (B, Q, L, 2)
    offsets: Tensor,  # (B, Q, H, L, P, 2)
    logits: Tensor,  # (B, Q, H, L, P)
    sizes: Sizes,
) -> Tensor:
    """`deformable_plain`, by the kernels where they can run: (B, Q, H, D)."""
    if not use_kernels("deformable", values):
        return deformable_plain(values, reference_xy, offsets, logits, sizes)
    from overt.ops.deformable.kernels import deformable_fused

    flat = [side for size in sizes for side in size]
    result: Tensor = deformable_fused(values, reference_xy, offsets, logits, flat)
    return result
