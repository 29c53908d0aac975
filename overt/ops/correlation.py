"""Compare the square around a moving point with the square around its query, all samples with all.

Letters: B batch, N points, L levels, T frames, C channels; r radius, P = 2r + 1 samples and
S = 2r + 2 cells along a side of the square. `correlate_plain` is the definition, for any device;
the Triton twin computes the same on CUDA and keeps nothing but its inputs for the backward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from overt.geometry.sample import SquareTaps, mix_taps
from overt.ops import HAS_TRITON

ALIGNMENT = 8  # 16-bit numbers that are read and written at once


def pitch(radius: int) -> int:
    """Where the kernels leave P*P numbers: filled up with zeros to a multiple of 8."""
    return -(-((2 * radius + 1) ** 2) // ALIGNMENT) * ALIGNMENT


def padded_width(radius: int) -> int:
    """Numbers of a result of the kernels: one `pitch` for each of the frame's P*P samples."""
    return (2 * radius + 1) ** 2 * pitch(radius)


def result_width(cells: Tensor, radius: int) -> int:
    """Numbers that `correlate` gives for each centre in these cells."""
    return padded_width(radius) if _by_kernels(cells) else (2 * radius + 1) ** 4


def _by_kernels(cells: Tensor) -> bool:
    return HAS_TRITON and cells.is_cuda


def correlate_plain(
    cells: Tensor,  # (rows, C) feature maps of all levels and frames, cell by cell
    support: Tensor,  # (B, N, L, P*P, C) samples around each query
    map_rows: Tensor,  # (B, L, T) row of the first cell of each map; its cells are ordered y, x
    sizes_xy: Tensor,  # (L, 2) width and height of a map
    centres_xy: Tensor,  # (B, N, L, T, 2) cells of that level
    taps: SquareTaps,
) -> Tensor:
    """Products of every sample around the centre with every sample around the query.

    The result, (B, N, L, T, P*P * P*P), has the frame's samples before the query's. What is
    interpolated are features or their products, whichever are fewer numbers.
    """
    numbers, weights = taps(centres_xy, sizes_xy.unsqueeze(1))
    rows = map_rows.unsqueeze(1).unsqueeze(-1) + numbers  # (B, N, L, T, S*S)
    squares = cells.index_select(0, rows.flatten()).view(*rows.shape, -1)
    mix_features = squares.shape[-1] < support.shape[3]
    if mix_features:
        squares = mix_taps(weights, squares)  # (B, N, L, T, P*P, C)
    # One large product per point serves all its frames.
    products = squares.flatten(3, 4) @ support.mT  # (B, N, L, T * P*P or S*S, P*P)
    products = torch.unflatten(products, 3, (rows.shape[3], -1))
    return (products if mix_features else mix_taps(weights, products)).flatten(-2)


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
    if not _by_kernels(cells):
        return correlate_plain(cells, support, map_rows, sizes_xy, centres_xy, taps)
    from overt.ops.correlation_kernels import correlate_fused, correlate_into

    places = (map_rows, sizes_xy, centres_xy, taps.radius)
    if shared is not None and not torch.compiler.is_compiling():
        return correlate_into(shared, cells_used, support, *places)
    result: Tensor = correlate_fused(cells, cells_used, support, *places)
    return result


class GradientTable:
    """The sum of gradients (rows, C); made when the first of them comes."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None

    def add_to(self, like: Tensor) -> Tensor:
        """The table to add to, with the shape of `like`, in float32."""
        if self.sums is None:
            self.sums = torch.zeros_like(like, dtype=torch.float32)
        return self.sums

    def take(self) -> Tensor | None:
        """The sums, which are then the caller's."""
        sums, self.sums = self.sums, None
        return sums


class SharedGradient(NamedTuple):
    """One table for the gradients that many correlations with the same cells give these cells.

    Autograd would make a whole table for each and add them up, which takes longer than the
    correlations themselves. `turn` stands for the cells in autograd's graph, so that their own
    gradient is asked for only after the last correlation has had its turn. The table knows nothing
    of `turn`: a circle of references would keep the whole graph alive.
    """

    turn: Tensor  # (), zero
    table: GradientTable

    @classmethod
    def of(cls, cells: Tensor) -> SharedGradient:
        table = GradientTable()
        return cls(_Turn.apply(cells, table), table)  # type: ignore[no-untyped-call]


def shared_gradient(cells: Tensor) -> SharedGradient | None:
    """One where the kernels run and a gradient is wanted."""
    wanted = _by_kernels(cells) and cells.requires_grad and torch.is_grad_enabled()
    return SharedGradient.of(cells) if wanted and not torch.compiler.is_compiling() else None


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cells: Tensor, table: GradientTable) -> Tensor:
        ctx.table = table
        return cells.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, None]:
        return ctx.table.take(), None
