"""The vision transformer, with timm's key names, for any image, patch and model size.

Shapes: B images, N patches, D features, K visible patches, T packed tokens.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overt.errors import CheckpointError
from overt.nn.attention import Block, in_chains
from overt.ops.attention.packing import Packing
from overt.ops.resize.api import resize

Grid = tuple[int, int]  # patches (down, across)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackedPatches:
    """The patches of each sequence, packed; made on the host by `pack_patches`."""

    rows: Tensor  # (T,) among all B x N patches; B x N itself is the class token
    packing: Packing
    patches: Tensor  # (K,) the position in its image of every token that is a patch
    tokens: Tensor | None  # (K,) which of the T tokens these are; None: all are


def pack_patches(
    visible_patches: Sequence[np.ndarray],
    images: Sequence[int],
    batch: int,
    patches: int,
    class_token: bool,
) -> PackedPatches:
    """Sequences of kept patches, each of the image with this number, one after another."""
    lengths = np.array([len(indices) for indices in visible_patches])
    indices = np.concatenate(visible_patches)
    rows = indices + np.repeat(np.asarray(images) * patches, lengths)
    tokens = None
    if class_token:
        tokens = np.arange(len(rows)) + np.repeat(np.arange(len(visible_patches)) + 1, lengths)
        with_class = np.full(len(rows) + len(visible_patches), batch * patches)
        with_class[tokens] = rows
        rows = with_class
    return PackedPatches(
        rows=torch.from_numpy(rows),
        packing=Packing.of(lengths + class_token, bound=patches + class_token),
        patches=torch.from_numpy(indices),
        tokens=None if tokens is None else torch.from_numpy(tokens),
    )


class PatchEmbed(nn.Module):
    """Pixels of each patch to one token; the weight is that of timm's convolution."""

    def __init__(self, patch_size: int, channels: int, width: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(channels, width, patch_size, patch_size)

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) to (B, N, D)
        size = self.patch_size
        batch, channels, height, width = images.shape
        shape = (batch, channels, height // size, size, width // size, size)
        blocks = images.reshape(shape)
        pixels = blocks.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, N, C p p)
        weight = self.proj.weight.flatten(1)
        # Zeros up to a multiple of 8 numbers, 16 bytes: without them kernels for the tensor cores
        # of newer devices cannot read the rows of patches of 14 pixels.
        if missing := -weight.shape[1] % 8:
            pixels, weight = F.pad(pixels, (0, missing)), F.pad(weight, (0, missing))
        # One matrix product: faster than a convolution whose windows do not overlap.
        return F.linear(pixels, weight, self.proj.bias)


class VisionTransformer(nn.Module):
    """Images to tokens: all of them, with some zeroed, or only those that are kept."""

    def __init__(
        self,
        image_size: tuple[int, int],
        patch_size: int,
        width: int,
        depth: int,
        heads: int,
        *,
        mlp_ratio: float = 4.0,
        channels: int = 3,
        class_token: bool = True,
        positions: str = "learned",
        rope_theta: float | None = None,
        layer_scale: float | None = None,
        drop_path_rate: float = 0.0,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        assert positions in ("learned", "sincos"), positions
        self.grid: Grid = (image_size[0] // patch_size, image_size[1] // patch_size)
        self.fixed_positions = positions == "sincos"
        self.rope_theta, self.head_width = rope_theta, width // heads
        self.patch_embed = PatchEmbed(patch_size, channels, width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width)) if class_token else None
        table = torch.zeros(1, self.prefix + math.prod(self.grid), width)
        if positions == "sincos":
            table[0, self.prefix :] = sincos_table(self.grid, width)
        self.pos_embed = nn.Parameter(table, requires_grad=positions == "learned")
        rates = torch.linspace(0, drop_path_rate, depth).tolist()
        self.blocks = nn.ModuleList(
            Block(width, heads, mlp_ratio, norm_eps, layer_scale, rate) for rate in rates
        )
        self.chains = in_chains(self.blocks)
        self.norm = nn.LayerNorm(width, norm_eps)
        self.initialize()

    @property
    def computed_tensors(self) -> tuple[str, ...]:
        """Name the tensors that follow from the settings (overt/checkpoint/weights.py)."""
        return ("pos_embed",) if self.fixed_positions else ()

    @property
    def prefix(self) -> int:
        """Tokens before the patches."""
        return 0 if self.cls_token is None else 1

    @torch.no_grad()
    def initialize(self, fan_in: bool = False) -> None:
        """Fresh weights: normal with deviation 0.02, or that of the inputs' number ** -0.5."""
        initialize(self, fan_in)
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=1e-6)
        if self.pos_embed.requires_grad:
            nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def embed(self, images: Tensor) -> Tensor:
        """Patch tokens with their positions, (B, N, D); the class token is not among them."""
        table = self.positions(self.grid_of(images))
        return self.patch_embed(images) + table[:, self.prefix :]  # type: ignore[no-any-return]

    def grid_of(self, images: Tensor) -> Grid:
        """Patches (down, across) of images (B, C, H, W)."""
        size = self.patch_embed.patch_size
        return images.shape[2] // size, images.shape[3] // size

    def positions(self, grid: Grid) -> Tensor:
        """The position table for a grid of patches, interpolated for any other than its own."""
        if grid == self.grid:
            return self.pos_embed
        return resize_positions(self.pos_embed, self.grid, grid, self.prefix)

    def forward(
        self, images: Tensor, hidden: Tensor | None = None, keep: Tensor | None = None
    ) -> Tensor:
        """All tokens, (B, 1 + N, D).

        With `hidden` (B, N) bool these patches are zero; with `keep` (B, K) only these patches
        enter the blocks, and the result is (B, 1 + K, D). Without a class token, (B, K, D).
        """
        return self.last_tokens(images, 1, hidden, keep)[0]

    def last_tokens(
        self,
        images: Tensor,
        layers: int,
        hidden: Tensor | None = None,
        keep: Tensor | None = None,
    ) -> list[Tensor]:
        """As `forward`, after each of the last blocks, all of them through the final norm."""
        tokens, rotation = self._first_tokens(images, hidden, keep)
        if layers == 1:
            for chain in self.chains:
                tokens = chain(tokens, rotation=rotation)
            return [self.norm(tokens)]
        last = []
        for number, block in enumerate(self.blocks):
            tokens = block(tokens, rotation=rotation)
            if number >= len(self.blocks) - layers:
                last.append(self.norm(tokens))
        return last

    def attention_maps(self, images: Tensor) -> Tensor:
        """How much each head of the last block attends to each patch, (B, H, N), summing to 1.

        From the class token where there is one, else on average over all patches.
        """
        tokens, rotation = self._first_tokens(images, None, None)
        first, last = self.blocks[:-1], cast(Any, self.blocks[-1])
        for block in first:
            tokens = block(tokens, rotation=rotation)
        weights = last.attn.weights(last.norm1(tokens), rotation)  # (B, H, T, T)
        maps = weights[:, :, 0] if self.prefix else weights.mean(2)
        patches: Tensor = maps[..., self.prefix :]
        return patches / patches.sum(-1, keepdim=True)

    def _first_tokens(
        self, images: Tensor, hidden: Tensor | None, keep: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """What the first block takes: tokens, and the angles that rotate them."""
        tokens = self.embed(images)
        rotation = self._rotation(self.grid_of(images), tokens.device)
        if hidden is not None:
            tokens = tokens * ~hidden[..., None]
        if keep is not None:
            tokens = tokens.gather(1, keep[..., None].expand(-1, -1, tokens.shape[-1]))
            rotation = None if rotation is None else rotation[keep]
        if self.cls_token is not None:
            first = (self.cls_token + self.pos_embed[:, :1]).expand(len(tokens), -1, -1)
            tokens = torch.cat([first.to(tokens.dtype), tokens], dim=1)
            rotation = None if rotation is None else _unrotated_first(rotation)
        return tokens, rotation

    def forward_packed(self, images: Tensor, visible: PackedPatches) -> Tensor:
        """Only the visible patches of each sequence, without padding, (T, D)."""
        table = self.embed(images).flatten(0, 1)  # (B N, D)
        cls_row = len(table)
        if self.cls_token is not None:
            first = (self.cls_token + self.pos_embed[:, :1])[0]
            table = torch.cat([table, first.to(table.dtype)])
        tokens = table.index_select(0, visible.rows)  # (T, D)
        rotation = self._rotation(self.grid_of(images), tokens.device)
        if rotation is not None:
            patches = len(rotation)
            index = visible.rows % patches
            if self.cls_token is not None:
                rotation = _unrotated_first(rotation)
                index = torch.where(visible.rows == cls_row, 0, 1 + index)
            rotation = rotation[index]
        for chain in self.chains:
            tokens = chain(tokens, visible.packing, rotation)
        return self.norm(tokens)  # type: ignore[no-any-return]

    def _rotation(self, grid: Grid, device: torch.device) -> Tensor | None:
        if self.rope_theta is None:
            return None
        return rope_table(grid, self.head_width, self.rope_theta).to(device)

    def fit(self, tensors: Mapping[str, Tensor], grid: Grid | None = None) -> dict[str, Tensor]:
        """A state dict of another image or patch size with tables and patch weights resized.

        `grid` is that of the checkpoint. Where it is None, a table of this model's own shape is
        taken as it is, and any other as that of a square. A table that is computed is never read.
        """
        self._refuse_another_width(tensors)
        fitted = dict(tensors)
        table = fitted.get("pos_embed")
        if table is not None:
            fitted["pos_embed"] = self._fit_table(table, grid)
        kernel = fitted.get("patch_embed.proj.weight")
        current = self.patch_embed.proj.weight
        if kernel is not None and kernel.shape[2:] != current.shape[2:]:
            fitted["patch_embed.proj.weight"] = resize_patch_weights(kernel, current.shape[-1])
            log.warning(
                "patch weights resized from %d to %d pixels", kernel.shape[-1], current.shape[-1]
            )
        return fitted

    def _refuse_another_width(self, tensors: Mapping[str, Tensor]) -> None:
        """No resizing helps where tokens have another number of features."""
        for name, axis in (("pos_embed", -1), ("patch_embed.proj.weight", 0), ("norm.weight", 0)):
            if name in tensors and tensors[name].shape[axis] != self.norm.weight.numel():
                raise CheckpointError(
                    f"the encoder in the file is {tensors[name].shape[axis]} features wide "
                    f"({name}), the model's is {self.norm.weight.numel()}. Choose the encoder of "
                    "the file in the model's configuration, or give a file of this width."
                )

    def _fit_table(self, table: Tensor, grid: Grid | None) -> Tensor:
        """A file's position table (1, prefix + N, D) for this model's grid and class token."""
        current = self.pos_embed.detach().to(table.device)
        if self.fixed_positions:
            # Not bit by bit: files in half precision are common.
            if table.shape != current.shape or (table.float() - current.float()).abs().max() > 1e-2:
                log.warning(
                    "position table not taken from the file: this model computes its own, for %s "
                    "patches",
                    self.grid,
                )
            return current
        if grid is None and table.shape == current.shape:
            if self.grid[0] != self.grid[1]:
                log.warning(
                    "position table used without resizing, for %s patches: the file does not say "
                    "for which grid it was made",
                    self.grid,
                )
            return table
        prefix, before = _layout_of_table(table.shape[1], grid)
        if before != self.grid:
            table = resize_positions(table, before, self.grid, prefix)
            log.warning("position table resized from %s to %s patches", before, self.grid)
        if prefix > self.prefix:
            log.warning("position of the class token skipped: this model has no class token")
            return table[:, prefix:]
        if prefix < self.prefix:
            log.warning("the file has no position of a class token: the model keeps its own")
            return torch.cat([current[:, : self.prefix].to(table.dtype), table], dim=1)
        return table


@torch.no_grad()
def initialize(module: nn.Module, fan_in: bool = False) -> None:
    """Linear and patch weights from a truncated normal, biases zero, norms one.

    The deviation is 0.02, or with `fan_in` the number of inputs ** -0.5: small models start with
    features of a useful size.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            deviation = part.weight[0].numel() ** -0.5 if fan_in else 0.02
            nn.init.trunc_normal_(part.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def sincos_table(grid: Grid, width: int) -> Tensor:
    """Fixed positions (N, D): half the features code the column, half the row; I-JEPA's order."""
    assert width % 4 == 0, "width is not a multiple of 4"
    quarter = width // 4
    frequencies = 10000.0 ** -(torch.arange(quarter, dtype=torch.float64) / quarter)
    down, across = (torch.arange(size, dtype=torch.float64) for size in grid)
    rows, columns = torch.meshgrid(down, across, indexing="ij")
    halves = [coordinate.flatten()[:, None] * frequencies for coordinate in (columns, rows)]
    return torch.cat([part for half in halves for part in (half.sin(), half.cos())], 1).float()


def rope_table(grid: Grid, head_width: int, theta: float) -> Tensor:
    """Cosine and sine (N, 2, d / 2) of each pair's angle: first pairs by row, then by column."""
    assert head_width % 4 == 0, "the width of a head is not a multiple of 4"
    quarter = head_width // 4
    frequencies = theta ** -(2.0 * torch.arange(quarter, dtype=torch.float64) / (head_width / 2))
    down, across = (torch.arange(size, dtype=torch.float64) for size in grid)
    rows, columns = torch.meshgrid(down, across, indexing="ij")
    angles = torch.cat(
        [coordinate.flatten()[:, None] * frequencies for coordinate in (rows, columns)], 1
    )
    return torch.stack([angles.cos(), angles.sin()], dim=1).float()


def _unrotated_first(rotation: Tensor) -> Tensor:
    """The table with one more entry in front, of angle zero."""
    still = torch.zeros_like(rotation[..., :1, :, :])
    still[..., 0, :] = 1.0
    return torch.cat([still, rotation], dim=-3)


def _layout_of_table(rows: int, grid: Grid | None) -> tuple[int, Grid]:
    """How many rows of a file's position table are before the patches, and the patches' grid.

    Without a grid, or with one that cannot be, the patches are those of a square.
    """
    for has_prefix in (True, False):
        for prefix in (0, 1):
            side = math.isqrt(max(rows - prefix, 0))
            before = grid if has_prefix and grid is not None else (side, side)
            if math.prod(before) == rows - prefix > 0:
                return prefix, before
    raise CheckpointError(
        f"the position table in the file has {rows} rows: not a square of patches, with or "
        "without a class token, and the file does not say for which grid it was made. Give the "
        "checkpoint folder of overt that it comes from, whose config.yaml says it, or set "
        "image and patch size to those of the file."
    )


def resize_positions(table: Tensor, before: Grid, after: Grid, prefix: int) -> Tensor:
    """A position table (1, prefix + N, D) for another grid, by bicubic interpolation."""
    first, patches = table[:, :prefix], table[:, prefix:]
    square = patches.reshape(len(table), *before, -1).permute(0, 3, 1, 2).float()
    resized = resize(square, after, mode="bicubic", antialias=True)
    return torch.cat([first, resized.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)], dim=1)


def resize_patch_weights(kernel: Tensor, size: int) -> Tensor:
    """Weights (D, C, p, p) for patches of another size that answer to a resized patch as before.

    The least-squares solution of that (FlexiViT, arXiv:2212.08013); exact for larger patches.
    """
    before = kernel.shape[-1]
    pixels = torch.eye(before**2, device=kernel.device).view(-1, 1, before, before)
    larger = F.interpolate(pixels, (size, size), mode="bicubic", antialias=True)
    solution = kernel.float().flatten(2) @ torch.linalg.pinv(larger.flatten(1)).T
    resized: Tensor = solution.view(*kernel.shape[:2], size, size)
    return resized.to(kernel.dtype)
