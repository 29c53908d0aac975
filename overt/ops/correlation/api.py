"""Compare the square around a moving point with the square around its query, all samples with all.

Letters: B batch, N points, L levels, T frames, C channels; r radius, P = 2r + 1 samples and
S = 2r + 2 cells along a side of the square. `correlate_plain` is the definition, for any device;
the Triton twin computes the same on CUDA and keeps nothing but its inputs for the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overt.ops.correlation.plain import correlate_plain
from overt.ops.correlation.shared_gradient import SharedGradient
from overt.ops.correlation.sizes import padded_width
from overt.ops.correlation.taps import SquareTaps
from overt.ops.dispatch import use_kernels


def result_width(cells: Tensor, radius: int) -> int:
    """Numbers that `correlate` gives for each center in these cells."""
    padded = use_kernels("correlation", cells)
    return padded_width(radius) if padded else (2 * radius + 1) ** 4


def correlate(
    cells: Tensor,  # (rows, C) float32
    cells_used: Tensor,  # (rows, C) the same, without gradient, in the type to compute in
    support: Tensor,
    map_rows: Tensor,
    sizes_xy: Tensor,
    centres_xy: Tensor,
    taps: SquareTaps,
    shared: SharedGradient | None = None,
) -> Tensor:
    """`correlate_plain`, by the kernels where they can run: then the query's P*P samples are filled
    up with zeros to a `pitch`, and rows are `padded_width` wide.

    The kernels compute in the type of `cells_used` and add up the gradient of `cells` in float32,
    in the table of `shared` where it is given.
    """
    if not use_kernels("correlation", cells):
        return correlate_plain(cells, support, map_rows, sizes_xy, centres_xy, taps)
    from overt.ops.correlation.kernels import correlate_fused, correlate_into

    positions = (map_rows, sizes_xy, centres_xy, taps.radius)
    if shared is not None and not torch.compiler.is_compiling():
        return correlate_into(shared, cells_used, support, *positions)
    result: Tensor = correlate_fused(cells, cells_used, support, *positions)
    return result


def shared_gradient(cells: Tensor) -> SharedGradient | None:
    """One where the kernels run and a gradient is wanted."""
    is_shared = (
        use_kernels("correlation", cells) and cells.requires_grad and torch.is_grad_enabled()
    )
    return SharedGradient.of(cells) if is_shared and not torch.compiler.is_compiling() else None
