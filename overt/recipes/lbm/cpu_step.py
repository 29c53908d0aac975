"""LBM's step for ONNX Runtime on a CPU: what `FrameStep` computes, with fewer operations.

Letters: N points, K candidates of a point, M entries of a memory, C channels, h x w cells.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from overt.recipes.lbm.backbone import STRIDE
from overt.recipes.lbm.blocks import EntryAttention
from overt.recipes.lbm.cpu_attention import (
    Corners,
    CpuDeformable,
    FoldedEntryAttention,
    ProjectedDeformables,
    Pyramid,
    SingleEntryAttention,
    count_large,
    make_pyramid,
)
from overt.recipes.lbm.cpu_encoder import CpuEncoder
from overt.recipes.lbm.cpu_int8 import Int8Stages, calibrate, round_products
from overt.recipes.lbm.layer import Layer
from overt.recipes.lbm.model import LBM
from overt.recipes.lbm.pyramid import Resize

# Up to this many points, features are sampled before they are projected: faster on two CPU cores
# (benchmarks/online.py onnx).
FEW_POINTS = 60


class CpuLayer(nn.Module):
    """What a `Layer` computes."""

    fine_weight: Tensor  # () what the correlation with the finest level counts
    rows: Tensor  # (h, sum of the coarse levels' rows) resizes them, times what each counts
    centers: Tensor  # (h * w, 2) of the finest cells, (x, y) in -1..1

    def __init__(
        self, layer: Layer, memory_size: int, resizes: Iterable[nn.Module], few_points: bool
    ) -> None:
        super().__init__()
        self.layer = layer
        read_together = CpuDeformable if few_points else ProjectedDeformables

        def fold(attention: EntryAttention) -> nn.Module:
            return FoldedEntryAttention(attention) if few_points else attention

        self.collision = fold(layer.collision_attention)
        self.stream = fold(layer.stream_attention)
        self.update = (
            SingleEntryAttention(layer.lattice_update)
            if layer.candidates == 1
            else fold(layer.lattice_update)
        )
        self.lattice = read_together([layer.lattice_attention], layer.sizes)
        for name in ("collision", "stream"):
            rows = layer.time_embedding(name, memory_size).detach().clone()
            self.register_buffer(f"{name}_rows", rows)
        fine, *coarse = layer.corr_conv.weight.detach().flatten()
        self.register_buffer("fine_weight", 1 + fine)
        # Resizing from each coarse level: what it counts is part of the rows' weights.
        weighted = [torch.zeros(layer.sizes[0][0], 0)]
        for level, (weight, resize) in enumerate(zip(coarse, resizes, strict=True), start=1):
            assert isinstance(resize, Resize), "the transformer has no others"
            weighted.append(weight * resize.rows)
            self.register_buffer(f"columns{level}", resize.columns.clone())
        self.register_buffer("rows", torch.cat(weighted, dim=1))
        y, x = ((torch.arange(length) + 0.5) * (2 / length) - 1 for length in layer.sizes[0])
        self.register_buffer("centers", torch.cartesian_prod(y, x).flip(-1))

    def forward(
        self,
        query: Tensor,  # (N, C)
        memories: tuple[Tensor, Tensor],  # collision and stream, (N, M, C) each
        ignore: Tensor,  # (N, M) bool
        pyramid: Pyramid,
        scales: Sequence[Tensor],  # of its tokens, (S, 1): one over their lengths
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
        centers = self.best_cells(recalled, pyramid, scales)
        repeated = recalled.unsqueeze(1)
        read = self.lattice(recalled, centers, pyramid)[0] + repeated
        lattice = layer.residual("lattice", repeated, read, None)  # (N, K, C)
        updated = layer.residual("lattice_update", recalled, self.update(recalled, lattice), None)
        return updated, centers

    def best_cells(self, query: Tensor, pyramid: Pyramid, scales: Sequence[Tensor]) -> Tensor:
        """Return centers (N, K, 2) in -1..1; a query's length does not change its best cells."""
        sizes, large = self.layer.sizes, count_large(self.layer.sizes)
        counts = [height * width for height, width in sizes]
        parts: list[Tensor] = []  # of the levels, (h * w, N)
        for tokens, scale, some in zip(
            pyramid, scales, (counts[:large], counts[large:]), strict=True
        ):
            if some:
                parts += torch.split((tokens @ query.T) * scale, some)
        total = parts[0] * self.fine_weight
        wide = [
            (getattr(self, f"columns{number}") @ torch.unflatten(part, 0, size)).flatten(1)
            for number, (part, size) in enumerate(zip(parts[1:], sizes[1:], strict=True), start=1)
        ]  # (rows of the level, w * N) each
        if wide:
            total = total + (self.rows @ torch.cat(wide)).view(total.shape)
        if self.layer.candidates == 1:
            cells = total.argmax(dim=0, keepdim=True)
        else:
            cells = total.topk(self.layer.candidates, dim=0).indices
        return self.centers[cells.T]


class CpuStep(nn.Module):
    """The inputs and outputs of `FrameStep`; fastest for about `points` points."""

    half_size: Tensor  # (2,) of the model's input, x and y in pixels

    def __init__(
        self,
        model: LBM,
        memory_size: int,
        threshold: float,
        points: int,
        pictures: Tensor | None = None,  # (F, 3, H, W) 0..255: with 8 bits, by ranges of these
    ) -> None:
        super().__init__()
        few_points = points <= FEW_POINTS
        read_together = CpuDeformable if few_points else ProjectedDeformables
        transformer = model.transformer
        if pictures is None:
            self.encoder = CpuEncoder(model.backbone)
        else:
            self.encoder = CpuEncoder(model.backbone, Int8Stages)
            calibrate(self.encoder, pictures)
            transformer = copy.deepcopy(transformer)  # its products are replaced below
        self.transformer = transformer
        self.threshold = threshold
        self.layers = nn.ModuleList(
            CpuLayer(layer, memory_size, transformer.resizes, few_points)
            for layer in transformer.layers
        )
        sizes, around_center = transformer.sizes, (transformer.offset_layer, transformer.vis_layer)
        self.around_center = read_together(around_center, sizes)
        self.around_point = read_together([transformer.collision_mem_layer], sizes)
        self.new_points = Corners(sizes[:1], points=1)
        if pictures is not None:
            round_products(self)
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
        features = self.encoder(frame)
        pyramid = make_pyramid(features, transformer.sizes)
        squares = ((tokens * tokens).sum(-1, keepdim=True) for tokens in pyramid)
        scales = [1 / square.clamp(min=1e-24).sqrt() for square in squares]
        new_points = torch.where(is_new.unsqueeze(-1), new_points, 0.0)  # others may be NaN
        read = self._read(features, new_points[0] / STRIDE - 0.5).unsqueeze(0)
        query = torch.where(is_new.unsqueeze(-1), read, query)
        ignore = ignore | is_new.unsqueeze(-1)
        refined, centers = query[0], new_points
        for layer in self.layers:
            memories = (collision[0], stream[0])
            refined, centers = layer(refined, memories, ignore[0], pyramid, scales)

        offset, vis = self.around_center(refined, centers, pyramid)
        looked = self._residual("offset", refined, offset)
        points_xy = (centers[:, 0] + 1) * self.half_size
        points_xy = points_xy + STRIDE * torch.tanh(transformer.offset_head(looked))
        looked = self._residual("vis", refined, vis)
        visibility, rho = torch.sigmoid(transformer.vis_head(looked)).unbind(-1)
        around = (points_xy / self.half_size - 1).clamp(-1, 1).unsqueeze(1)
        entry = self._residual(
            "collision_mem", refined, *self.around_point(refined, around, pyramid)
        )
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

    def _read(self, features: Tensor, cells: Tensor) -> Tensor:
        """Return the features (h * w, C) at positions (N, 2); the border is repeated."""
        inside = torch.minimum(cells.clamp(min=0), self.new_points.last.view(2) + 1)
        rows, by_row = (
            part.flatten(1) for part in self.new_points(inside.view(-1, 1, 2, 1, 1), 1.0)
        )
        gathered = features.index_select(0, rows.flatten()).view(-1, 4, features.shape[1])
        read: Tensor = by_row.unsqueeze(1) @ gathered
        return read[:, 0]

    def _residual(self, name: str, query: Tensor, read: Tensor) -> Tensor:
        """Add what was read around one center per query, (N, 1, C); returns (N, C)."""
        return self.transformer.residual(name, query, read[:, 0] + query, None)
