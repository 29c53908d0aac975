"""One table for the gradients that the correlations of a step give the same cells."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class GradientTable:
    """The sum of gradients (rows, C); made when the first of them comes."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None

    def add_to(self, source: Tensor) -> Tensor:
        """The table to add to, with the shape of `source`, in float32."""
        if self.sums is None:
            self.sums = torch.zeros_like(source, dtype=torch.float32)
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


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cells: Tensor, table: GradientTable) -> Tensor:
        ctx.table = table
        return cells.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, None]:
        return ctx.table.take(), None
