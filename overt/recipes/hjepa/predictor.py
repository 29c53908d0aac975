"""Predictors: from the features of visible patches to those of hidden ones.

`Predictor` is I-JEPA's narrow one, `ReferencePredictor` has the layers and names of the H-JEPA
reference. Both read packed tokens: K visible patches, T hidden ones, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from overt.nn.attention import Block, in_chains
from overt.nn.vit import initialize, sincos_table
from overt.ops.attention.api import attend_packed
from overt.ops.attention.packing import Packing
from overt.recipes.hjepa.masks import Grid


@dataclass(frozen=True)
class Prediction:
    """Which hidden patches are predicted from which visible ones; built by `pack_predictions`.

    A sequence is a context followed by one set of hidden patches. Sequences are ordered by set,
    then by context, then by image.
    """

    rows: Tensor  # tokens of all sequences among K visible patches followed by T hidden ones
    packing: Packing
    hidden: Tensor  # (T,) where the hidden patches stand among these tokens
    positions: Tensor  # (T,) their indices in the image
    targets: Tensor  # (T,) their rows among the B x N patches of the batch


def pack_predictions(
    contexts: Sequence[int], targets: Sequence[Sequence[np.ndarray]], patches: int
) -> Prediction:
    """Pair every context with every set of targets of its image.

    `contexts` are the lengths of the packed contexts, those of all images for the first context,
    then for the second; `targets[s][b]` is set s of image b.
    """
    lengths = np.asarray(contexts)
    batch, visible = len(targets[0]), int(lengths.sum())
    per_image = len(lengths) // batch
    begins = np.cumsum(lengths) - lengths
    hidden = [
        targets[s][b] for s in range(len(targets)) for _ in range(per_image) for b in range(batch)
    ]
    images = np.tile(np.arange(batch), len(targets) * per_image)
    counts = np.array([len(positions) for positions in hidden])
    visible_counts = np.tile(lengths, len(targets))
    positions = np.concatenate(hidden)
    total = visible_counts + counts
    ends = np.cumsum(total)
    rows = np.empty(int(ends[-1]), dtype=np.int64)
    first_hidden = np.repeat(ends - counts, counts)
    at = first_hidden + _inside(counts)
    rows[at] = visible + np.arange(len(positions))
    rows[np.repeat(ends - total, visible_counts) + _inside(visible_counts)] = np.repeat(
        np.tile(begins, len(targets)), visible_counts
    ) + _inside(visible_counts)
    return Prediction(
        rows=torch.from_numpy(rows),
        packing=Packing.of(total, bound=2 * patches),
        hidden=torch.from_numpy(at),
        positions=torch.from_numpy(positions),
        targets=torch.from_numpy(positions + np.repeat(images * patches, counts)),
    )


def _inside(lengths: np.ndarray) -> np.ndarray:
    """Return 0 to length - 1 for each of the lengths, concatenated."""
    begins = np.cumsum(lengths) - lengths
    inside: np.ndarray = np.arange(lengths.sum()) - np.repeat(begins, lengths)
    return inside


class Predictor(nn.Module):
    """I-JEPA's predictor: narrow, with a separate fixed position table."""

    computed_tensors = ("predictor_pos_embed",)

    def __init__(
        self,
        grid: Grid,
        embed_dim: int,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: float = 4.0,
        norm_eps: float = 1e-6,
        fan_in: bool = False,
        target_width: int | None = None,  # None: that of the encoder's features
    ) -> None:
        super().__init__()
        self.predictor_embed = nn.Linear(embed_dim, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        table = sincos_table(grid, width)[None]
        self.predictor_pos_embed = nn.Parameter(table, requires_grad=False)
        self.predictor_blocks = nn.ModuleList(
            Block(width, heads, mlp_ratio, norm_eps) for _ in range(depth)
        )
        self.chains = in_chains(self.predictor_blocks)
        self.predictor_norm = nn.LayerNorm(width, norm_eps)
        self.predictor_proj = nn.Linear(width, target_width or embed_dim)
        initialize(self, fan_in)
        nn.init.trunc_normal_(self.mask_token, std=0.02)

    @property
    def blocks_in_order(self) -> list[nn.Module]:
        return list(self.predictor_blocks)

    def forward(
        self, context: Tensor, visible_positions: Tensor, prediction: Prediction, table: Tensor
    ) -> Tensor:
        """Predict features of the hidden patches, (T, D), from those of the visible ones, (K, D).

        `table`, the encoder's positions, is not used: this predictor has its own.
        """
        positions = self.predictor_pos_embed[0]
        visible = self.predictor_embed(context) + positions[visible_positions]
        hidden = self.mask_token[0] + positions[prediction.positions]
        tokens = torch.cat([visible, hidden.to(visible.dtype)]).index_select(0, prediction.rows)
        for chain in self.chains:
            tokens = chain(tokens, prediction.packing)
        tokens = self.predictor_norm(tokens.index_select(0, prediction.hidden))
        return self.predictor_proj(tokens)  # type: ignore[no-any-return]


class ReferencePredictor(nn.Module):
    """The H-JEPA reference's predictor: as wide as the encoder, with the encoder's positions."""

    computed_tensors = ("pos_embed_predictor",)

    def __init__(
        self, width: int, depth: int, heads: int, mlp_ratio: float = 4.0, fan_in: bool = False
    ) -> None:
        super().__init__()
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        # Exists only for the keys of a reference checkpoint; the encoder's table is used.
        self.pos_embed_predictor = nn.Parameter(torch.zeros(1, 1, width), requires_grad=False)
        self.blocks = nn.ModuleList(
            _ReferenceBlock(width, heads, mlp_ratio, fan_in) for _ in range(depth)
        )
        self.chains = in_chains(self.blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, width)
        initialize(self, fan_in)
        nn.init.trunc_normal_(self.mask_token, std=0.02)

    @property
    def blocks_in_order(self) -> list[nn.Module]:
        return list(self.blocks)

    def forward(
        self, context: Tensor, visible_positions: Tensor, prediction: Prediction, table: Tensor
    ) -> Tensor:
        """Predict features of the hidden patches, (T, D), from those of the visible ones, (K, D).

        `table` (N, D) are the encoder's positions; visible features get no additional ones.
        """
        hidden = self.mask_token[0] + table[prediction.positions]
        tokens = torch.cat([context, hidden.to(context.dtype)]).index_select(0, prediction.rows)
        for chain in self.chains:
            tokens = chain(tokens, prediction.packing)
        return self.head(self.norm(tokens.index_select(0, prediction.hidden)))  # type: ignore[no-any-return]


class _ReferenceAttention(nn.Module):
    """Self-attention with the names of torch's MultiheadAttention."""

    def __init__(self, width: int, heads: int, fan_in: bool) -> None:
        super().__init__()
        self.heads = heads
        deviation = width**-0.5 if fan_in else 0.02
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        nn.init.trunc_normal_(self.in_proj_weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor, packing: Packing) -> Tensor:
        projected = nn.functional.linear(tokens, self.in_proj_weight, self.in_proj_bias)
        projected = projected.view(len(tokens), 3, self.heads, -1)
        return self.out_proj(attend_packed(projected, packing).flatten(-2))  # type: ignore[no-any-return]


class _ReferenceBlock(nn.Module):
    def __init__(self, width: int, heads: int, mlp_ratio: float, fan_in: bool) -> None:
        super().__init__()
        hidden = round(width * mlp_ratio)
        self.norm1 = nn.LayerNorm(width)
        self.attn = _ReferenceAttention(width, heads, fan_in)
        self.norm2 = nn.LayerNorm(width)
        # The reference has a dropout of rate 0 at index 2: its linear layers are 0 and 3.
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Identity(), nn.Linear(hidden, width)
        )

    def forward(self, tokens: Tensor, packing: Packing) -> Tensor:
        tokens = tokens + self.attn(self.norm1(tokens), packing)
        return tokens + self.mlp(self.norm2(tokens))  # type: ignore[no-any-return]
