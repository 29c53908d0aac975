"""The part of LBM that runs once per frame: three layers, three heads, and the memory updates.

Letters: B clips, N points, C channels, h x w cells, P = h * w, S tokens of all levels, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from overt.nn.deformable import DeformableAttention
from overt.nn.dropout import number_sites
from overt.recipes.lbm.backbone import STRIDE
from overt.recipes.lbm.blocks import Head, PostNorm
from overt.recipes.lbm.layer import Found, Layer, Memory
from overt.recipes.lbm.loss import cell_entropy
from overt.recipes.lbm.pyramid import Resize, level_sizes, make_tokens, normalize

# Candidates of a middle layer; the first layer's are a setting, the last has one.
MIDDLE_CANDIDATES = 4
COLLISION_POINTS = 4  # points per level that the collision memory's head reads


class FrameMaps(NamedTuple):
    """What points sample from a frame; it depends only on the frame."""

    values: tuple[Tensor, ...]  # of the layers' and the heads' attention, (B, S, H, C / H) each
    guides: tuple[Tensor, ...]  # of the layers, (B, P, C) each


class Estimate(NamedTuple):
    """Positions of the points in one frame."""

    points_xy: Tensor  # (B, N, 2) pixels of the model, float32
    offset: Tensor  # (B, N, 2) from the best cell's center
    visibility: Tensor  # (B, N) logits
    rho: Tensor  # (B, N) logits: is the point wrong or invisible?
    layers: tuple[Found, ...]


class Entry(NamedTuple):
    """New memory entries from one frame."""

    collision: Tensor  # (B, N, C)
    stream: Tensor  # (B, N, C)
    ignore: Tensor  # (B, N) bool


class Transformer(PostNorm):
    """Locates points in a frame, given its maps and the memories."""

    # In every published file; here they follow from the input size and are unused.
    computed_tensors = ("spatial_shapes", "start_levels")

    spatial_shapes: Tensor
    start_levels: Tensor

    def __init__(
        self,
        input_size: tuple[int, int],
        channels: int,
        heads: int,
        levels: int,
        neighbors: int,
        candidates: int,
        layers: int,
        memory_size: int,
        dropout: float,
        mask_drop: float,
        temperature: float,
    ) -> None:
        super().__init__(channels, dropout)
        self.input_size = input_size
        self.temperature = temperature
        cells = (input_size[0] // STRIDE, input_size[1] // STRIDE)
        self.sizes = level_sizes(cells, levels)
        shapes = torch.tensor(self.sizes)
        self.register_buffer("spatial_shapes", shapes)
        self.register_buffer("start_levels", shapes.prod(1).cumsum(0) - shapes.prod(1))
        counts = [candidates, *[MIDDLE_CANDIDATES] * (layers - 2), 1]
        self.layers: Sequence[Layer] = nn.ModuleList(  # type: ignore[assignment]
            Layer(channels, heads, self.sizes, neighbors, count, memory_size, dropout, mask_drop)
            for count in counts
        )
        # No loss uses the last layer's rho, and DDP waits for every gradient.
        self.layers[-1].reference_rho.requires_grad_(False)
        self.offset_layer = DeformableAttention(channels, heads, levels, neighbors, dropout)
        self.vis_layer = DeformableAttention(channels, heads, levels, neighbors, dropout)
        self.collision_mem_layer = DeformableAttention(
            channels, heads, levels, COLLISION_POINTS, dropout
        )
        for name in ("offset", "vis", "collision_mem"):
            self.add_residual(name)
        self.offset_head = Head(channels)
        self.vis_head = Head(channels)
        number_sites(self)
        self.resizes = nn.ModuleList(Resize(size, cells) for size in self.sizes[1:])

    def frame_maps(self, features: Tensor) -> FrameMaps:
        """Compute everything that is needed once per frame, from features (B, h, w, C).

        Resizing a level and mixing the correlations of levels are linear in the normalized
        features. So they are applied to the features, and a layer's correlation is one matrix
        product.
        """
        tokens = make_tokens(features, len(self.sizes))
        readers = [layer.lattice_attention for layer in self.layers]
        readers += [self.offset_layer, self.vis_layer, self.collision_mem_layer]
        values = tuple(reader.project(tokens) for reader in readers)
        counts = [height * width for height, width in self.sizes]
        parts = torch.split(normalize(tokens), counts, dim=1)
        levels = [parts[0]]
        for part, size, resize in zip(parts[1:], self.sizes[1:], self.resizes, strict=True):
            levels.append(resize(torch.unflatten(part, 1, size)).flatten(1, 2))
        guides = []
        for layer in self.layers:
            weights = layer.corr_conv.weight.flatten()
            guide = levels[0] * (1 + weights[0])
            for weight, level in zip(weights[1:], levels[1:], strict=True):
                guide = guide + level * weight
            guides.append(guide)
        return FrameMaps(values, tuple(guides))

    def forward(
        self,
        query: Tensor,  # (B, N, C) of the query frame, the same in every frame
        memory: Memory,
        frame: Tensor | FrameMaps,  # features (B, h, w, C), or what was made of them before
        seed: Tensor | None = None,  # () int64, of what is dropped in training
        cells: Tensor | None = None,  # (B, N) the true cell of each point
    ) -> tuple[Estimate, Tensor, Tensor, Tensor | None]:
        """The estimate, what the collision and the stream memory gain, (B, N, C) each, and the
        layers' entropies (L, B, N) of the true cells among all, where those are given."""
        if not isinstance(frame, Tensor):
            maps = frame
        elif torch.compiler.is_compiling():
            # A compiled graph recomputes them in its backward pass and stores only the features.
            maps = checkpoint(self.frame_maps, frame, use_reentrant=False)
        else:
            maps = self.frame_maps(frame)
        outputs: list[Found] = []
        for layer, values, guide in zip(
            self.layers, maps.values[: len(self.layers)], maps.guides, strict=True
        ):
            outputs.append(
                layer(outputs[-1].query if outputs else query, memory, values, guide, seed)
            )
        *_, offset_values, vis_values, collision_values = maps.values
        last = outputs[-1]
        height, width = self.input_size
        size_xy = (float(width), float(height))
        centre_xy = last.points_xy[:, :, 0]  # (B, N, 2)

        looked = self._look("offset", last.query, offset_values, _parts(centre_xy, size_xy), seed)
        offset = STRIDE * torch.tanh(self.offset_head(looked).float())
        points_xy = centre_xy + offset
        looked = self._look("vis", last.query, vis_values, _parts(centre_xy, size_xy), seed)
        visibility, rho = self.vis_head(looked).unbind(-1)
        collision = self._look(
            "collision_mem", last.query, collision_values, _parts(points_xy, size_xy), seed
        )
        estimate = Estimate(points_xy, offset, visibility, rho, tuple(outputs))
        entropy = None
        if cells is not None:
            layer_entropies = [
                cell_entropy(layer.correlation, cells, self.temperature) for layer in outputs
            ]
            entropy = torch.stack(layer_entropies)
        return estimate, collision, last.query, entropy

    def _look(
        self, name: str, query: Tensor, values: Tensor, parts_xy: Tensor, seed: Tensor | None
    ) -> Tensor:
        """Attend around one reference point per query, (B, N, C)."""
        reference = parts_xy.unsqueeze(2).expand(-1, -1, len(self.sizes), -1)
        read = getattr(self, f"{name}_layer")(query, values, reference, self.sizes, seed)
        return self.residual(name, query, read, seed)


def _parts(points_xy: Tensor, size_xy: tuple[float, float]) -> Tensor:
    """Convert model pixels to fractions of the image, clamped to it."""
    x, y = points_xy.unbind(-1)
    return torch.stack([x / size_xy[0], y / size_xy[1]], dim=-1).clamp(0, 1)
