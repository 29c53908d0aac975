"""LBM's step for ONNX Runtime on a CPU: what `FrameStep` computes, with fewer operations.

Letters: N points, K candidates of a point, M entries of a memory, C channels, h x w cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from overt.recipes.lbm.backbone import STRIDE
from overt.recipes.lbm.blocks import EntryAttention
from overt.recipes.lbm.cpu_attention import (
    CpuDeformable,
    FoldedEntryAttention,
    Level,
    SingleEntryAttention,
    make_levels,
)
from overt.recipes.lbm.cpu_encoder import CpuEncoder
from overt.recipes.lbm.layer import Layer
from overt.recipes.lbm.model import LBM
from overt.recipes.lbm.pyramid import Resize

# Up to this many points, features are sampled before they are projected: faster on two CPU cores
# (benchmarks/online.py onnx).
FEW_POINTS = 60


class CpuLayer(nn.Module):
    """What a `Layer` computes."""

    fine_weight: Tensor  # () what the correlation with the finest level counts
    centers: Tensor  # (h * w, 2) of the finest cells, (x, y) in -1..1

    def __init__(
        self, layer: Layer, memory_size: int, resizes: Iterable[nn.Module], few_points: bool
    ) -> None:
        super().__init__()
        self.layer = layer

        def fold(attention: EntryAttention) -> nn.Module:
            return FoldedEntryAttention(attention) if few_points else attention

        self.collision = fold(layer.collision_attention)
        self.stream = fold(layer.stream_attention)
        self.update = (
            SingleEntryAttention(layer.lattice_update)
            if layer.candidates == 1
            else fold(layer.lattice_update)
        )
        self.lattice = CpuDeformable(layer.lattice_attention, layer.sizes, few_points)
        for name in ("collision", "stream"):
            rows = layer.time_embedding(name, memory_size).detach().clone()
            self.register_buffer(f"{name}_rows", rows)
        fine, *coarse = layer.corr_conv.weight.detach().flatten()
        self.register_buffer("fine_weight", 1 + fine)
        # Resizing from each coarse level: what it counts is part of the rows' weights.
        for level, (weight, resize) in enumerate(zip(coarse, resizes, strict=True), start=1):
            assert isinstance(resize, Resize), "the transformer has no others"
            self.register_buffer(f"rows{level}", weight * resize.rows)
            self.register_buffer(f"columns{level}", resize.columns.T.contiguous())
        y, x = ((torch.arange(length) + 0.5) * (2 / length) - 1 for length in layer.sizes[0])
        self.register_buffer("centers", torch.cartesian_prod(y, x).flip(-1))

    def forward(
        self,
        query: Tensor,  # (N, C)
        memories: tuple[Tensor, Tensor],  # collision and stream, (N, M, C) each
        ignore: Tensor,  # (N, M) bool
        levels: Sequence[Level],
        scales: Sequence[Tensor],  # of each level, (h * w,): one over the lengths of its tokens
    ) -> tuple[Tensor, Tensor]:
        """Return the next query (N, C) and the centers of the best cells, (N, K, 2) in -1..1."""
        layer = self.layer
        is_empty = ignore.all(dim=-1, keepdim=True)
        recalled = query
        for name, entries in zip(("collision", "stream"), memories, strict=True):
            rows = getattr(self, f"{name}_rows")
            asking = recalled + rows[-1]
            update = getattr(self, name)(asking, entries, rows[:-1], ignore & ~is_empty)
            recalled = layer.residual(name, asking, update, None)
        recalled = torch.where(is_empty, query, recalled)
        centers = self.best_cells(recalled, levels, scales)
        repeated = recalled.unsqueeze(1)
        read = self.lattice(recalled, centers, levels) + repeated
        lattice = layer.residual("lattice", repeated, read, None)  # (N, K, C)
        updated = layer.residual("lattice_update", recalled, self.update(recalled, lattice), None)
        return updated, centers

    def best_cells(
        self, query: Tensor, levels: Sequence[Level], scales: Sequence[Tensor]
    ) -> Tensor:
        """Return centers (N, K, 2) in -1..1; a query's length does not change its best cells."""
        total = (query @ levels[0].tokens.T) * (scales[0] * self.fine_weight)  # (N, h * w)
        for number, (level, scale) in enumerate(zip(levels[1:], scales[1:], strict=True), start=1):
            part = torch.unflatten((query @ level.tokens.T) * scale, 1, level.size)
            part = getattr(self, f"rows{number}") @ (part @ getattr(self, f"columns{number}"))
            total = total + part.flatten(1)
        if self.layer.candidates == 1:
            cells = total.argmax(dim=-1, keepdim=True)
        else:
            cells = total.topk(self.layer.candidates, dim=-1).indices
        return self.centers[cells]


class CpuStep(nn.Module):
    """The inputs and outputs of `FrameStep`; fastest for about `points` points."""

    half_size: Tensor  # (2,) of the model's input, x and y in pixels

    def __init__(self, model: LBM, memory_size: int, threshold: float, points: int) -> None:
        super().__init__()
        few_points = points <= FEW_POINTS
        self.encoder = CpuEncoder(model.backbone)
        self.transformer = transformer = model.transformer
        self.threshold = threshold
        self.layers = nn.ModuleList(
            CpuLayer(layer, memory_size, transformer.resizes, few_points)
            for layer in transformer.layers
        )
        for name in ("offset", "vis", "collision_mem"):
            attention = getattr(transformer, f"{name}_layer")
            self.add_module(name, CpuDeformable(attention, transformer.sizes, few_points))
        height, width = model.input_size
        self.register_buffer("half_size", torch.tensor([width / 2, height / 2]))

    def forward(
        self,
        frame: Tensor,  # (1, 3, H, W) float32 in 0..255
        new_points: Tensor,  # (1, N, 2) where new points are, pixels of the model
        is_new: Tensor,  # (1, N) bool
        query: Tensor,  # (1, N, C)
        collision: Tensor,  # (1, N, M, C)
        stream: Tensor,  # (1, N, M, C)
        ignore: Tensor,  # (1, N, M) bool
    ) -> tuple[Tensor, ...]:
        transformer = self.transformer
        levels = make_levels(self.encoder(frame), transformer.sizes)
        scales = [
            1 / torch.linalg.vector_norm(level.tokens, dim=-1).clamp(min=1e-12) for level in levels
        ]
        grid = (new_points / self.half_size - 1).unsqueeze(2)  # (1, N, 1, 2)
        read = F.grid_sample(levels[0].image, grid, padding_mode="border", align_corners=False)
        query = torch.where(is_new.unsqueeze(-1), read[..., 0].mT, query)
        ignore = ignore | is_new.unsqueeze(-1)
        refined, centers = query[0], new_points
        for layer in self.layers:
            memories = (collision[0], stream[0])
            refined, centers = layer(refined, memories, ignore[0], levels, scales)

        looked = self._look("offset", refined, centers, levels)
        points_xy = (centers[:, 0] + 1) * self.half_size
        points_xy = points_xy + STRIDE * torch.tanh(transformer.offset_head(looked))
        looked = self._look("vis", refined, centers, levels)
        visibility, rho = torch.sigmoid(transformer.vis_head(looked)).unbind(-1)
        around = (points_xy / self.half_size - 1).clamp(-1, 1).unsqueeze(1)
        entry = self._look("collision_mem", refined, around, levels)
        unsure = (visibility < self.threshold).unsqueeze(-1)
        return (
            points_xy.unsqueeze(0),
            visibility,
            rho,
            query,
            torch.cat([collision[:, :, 1:], entry[None, :, None]], dim=2),
            torch.cat([stream[:, :, 1:], refined[None, :, None]], dim=2),
            torch.cat([ignore[:, :, 1:], unsure[None]], dim=2),
        )

    def _look(self, name: str, query: Tensor, centers: Tensor, levels: Sequence[Level]) -> Tensor:
        """Attend around one center per query, (N, C)."""
        read = getattr(self, name)(query, centers, levels)[:, 0] + query
        return self.transformer.residual(name, query, read, None)
