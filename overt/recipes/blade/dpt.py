"""Depth-Anything-V2: four feature maps of a vision transformer to one dense map (DPT).

Keys are those of the published files. Letters: B images, D token features, F map features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overt.nn.dinov2 import DinoVisionTransformer
from overt.nn.vit import Grid
from overt.ops.resize.api import resize as interpolate

MAX_DEPTH_M = 20.0  # of the depth map


def resize(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear, corners on corners."""
    return interpolate(maps, size, align_corners=True)


class ResidualConvUnit(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(features, features, 3, padding=1)
        self.conv2 = nn.Conv2d(features, features, 3, padding=1)

    def forward(self, maps: Tensor) -> Tensor:
        return maps + self.conv2(F.relu(self.conv1(F.relu(maps))))  # type: ignore[no-any-return]


class FeatureFusion(nn.Module):
    """Fuses a finer map into a coarser one."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.out_conv = nn.Conv2d(features, features, 1)
        self.resConfUnit1 = ResidualConvUnit(features)
        self.resConfUnit2 = ResidualConvUnit(features)

    def forward(self, maps: Tensor, finer: Tensor | None = None) -> Tensor:
        """Return the fused map at its own size.

        The published order is resize, then the 1 x 1 convolution. The two commute, since the
        weights of a bilinear resize sum to one; convolving first is cheaper.
        """
        if finer is not None:
            maps = maps + self.resConfUnit1(finer)
        return self.out_conv(self.resConfUnit2(maps))  # type: ignore[no-any-return]


class Scratch(nn.Module):
    """Holds the layers under their published name."""

    def __init__(self, channels: Sequence[int], features: int) -> None:
        super().__init__()
        convolution_options = {"kernel_size": 3, "padding": 1, "bias": False}
        self.layer1_rn = nn.Conv2d(channels[0], features, **convolution_options)  # type: ignore[arg-type]
        self.layer2_rn = nn.Conv2d(channels[1], features, **convolution_options)  # type: ignore[arg-type]
        self.layer3_rn = nn.Conv2d(channels[2], features, **convolution_options)  # type: ignore[arg-type]
        self.layer4_rn = nn.Conv2d(channels[3], features, **convolution_options)  # type: ignore[arg-type]
        self.refinenet1 = FeatureFusion(features)
        self.refinenet2 = FeatureFusion(features)
        self.refinenet3 = FeatureFusion(features)
        self.refinenet4 = FeatureFusion(features)
        # The coarsest map has no coarser one to be fused with: unused keys.
        self.refinenet4.resConfUnit1.requires_grad_(False)
        self.output_conv1 = nn.Conv2d(features, features // 2, 3, padding=1)
        self.output_conv2 = nn.Sequential(
            nn.Conv2d(features // 2, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 1), nn.Sigmoid()
        )


class DPTHead(nn.Module):
    """Fuse token maps of four blocks into one map of eight times the grid size."""

    def __init__(self, width: int, channels: Sequence[int], features: int) -> None:
        super().__init__()
        first, second, _, fourth = channels
        self.projects = nn.ModuleList(nn.Conv2d(width, count, 1) for count in channels)
        self.resize_layers = nn.ModuleList(
            [
                nn.ConvTranspose2d(first, first, 4, 4),
                nn.ConvTranspose2d(second, second, 2, 2),
                nn.Identity(),
                nn.Conv2d(fourth, fourth, 3, 2, 1),
            ]
        )
        self.scratch = Scratch(channels, features)

    def forward(self, tokens: Sequence[Tensor], grid: Grid) -> Tensor:
        """Return the finest fused map, four times the grid size."""
        return self.fuse(tokens, grid)[-1]

    def fuse(self, tokens: Sequence[Tensor], grid: Grid) -> list[Tensor]:
        """Return the fused maps from coarse to fine, the last one four times the grid size.

        Each map but the last is resized to the next one's size; the published model doubles the
        last.
        """
        scratch, levels = self.scratch, []
        for number, (part, project, change) in enumerate(
            zip(tokens, self.projects, self.resize_layers, strict=True), start=1
        ):
            maps = torch.unflatten(part.transpose(1, 2), 2, grid)  # (B, D, down, across)
            maps = maps.contiguous(memory_format=torch.channels_last)
            levels.append(getattr(scratch, f"layer{number}_rn")(change(project(maps))))
        first, second, third, fourth = levels
        path4 = resize(scratch.refinenet4(fourth), third.shape[2:])
        path3 = resize(scratch.refinenet3(path4, third), second.shape[2:])
        path2 = resize(scratch.refinenet2(path3, second), first.shape[2:])
        return [path4, path3, path2, scratch.refinenet1(path2, first)]

    def paths(self, tokens: Sequence[Tensor], grid: Grid) -> list[Tensor]:
        """Return `path_4` to `path_1` of the published model; the last is 8x the grid size."""
        *coarser, last = self.fuse(tokens, grid)
        return [*coarser, resize(last, (2 * last.shape[2], 2 * last.shape[3]))]

    def depth(self, path: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the depth map (B, 1, *size) in 0 to 1 that the published model predicts."""
        maps = resize(self.scratch.output_conv1(path), size)
        return self.scratch.output_conv2(maps)  # type: ignore[no-any-return]


class DepthAnything(nn.Module):
    """Encoder and DPT head: the complete Depth-Anything-V2."""

    def __init__(
        self,
        encoder: DinoVisionTransformer,
        taps: Sequence[int],
        channels: Sequence[int],
        features: int,
    ) -> None:
        super().__init__()
        self.pretrained = encoder
        self.depth_head = DPTHead(encoder.norm.weight.numel(), channels, features)
        self.tapped = tuple(taps)
        self.features = features

    def tokens(self, images: Tensor) -> list[Tensor]:
        return [tap.patches for tap in self.pretrained.taps(images, self.tapped)]

    def forward(self, images: Tensor, output: int, out: Tensor | None = None) -> Tensor:
        """Return features (B, F, output, output): `path_1` resized, without materializing it.

        Doubling and resizing are one linear map along rows and one along columns: two matrix
        products at the smaller size. Without a gradient they can be written to `out`, contiguous
        (B, output, output, F).
        """
        grid = self.pretrained.grid_of(images)
        return double_and_resize(self.depth_head(self.tokens(images), grid), output, out)

    def depth_m(self, images: Tensor) -> Tensor:
        """Return metric depth (B, 1, H, W) of images (B, 3, H, W)."""
        grid = self.pretrained.grid_of(images)
        path = self.depth_head.paths(self.tokens(images), grid)[-1]
        return MAX_DEPTH_M * self.depth_head.depth(path, (images.shape[2], images.shape[3]))


def double_and_resize(maps: Tensor, output: int, out: Tensor | None = None) -> Tensor:
    """Resize (B, F, H, W) to twice its size, then to (B, F, output, output), both bilinear."""
    batch, features, height, width = maps.shape
    matrices = {size: doubling_matrix(size, output, maps) for size in {height, width}}
    rows = maps.permute(0, 2, 3, 1)  # (B, H, W, F), as it lies in memory
    wide = matrices[width] @ rows.flatten(0, 1)  # (B H, output, F)
    tall = torch.bmm(
        matrices[height].expand(batch, -1, -1),
        wide.view(batch, height, output * features),
        out=None if out is None else out.view(batch, output, output * features),
    )
    return tall.view(batch, output, output, features).permute(0, 3, 1, 2)


def doubling_matrix(size: int, output: int, reference: Tensor) -> Tensor:
    """Return the weights (output, size) of a resize to twice the size, then to `output`."""
    double = bilinear_matrix(size, 2 * size, reference)
    return (bilinear_matrix(2 * size, output, reference) @ double).to(reference.dtype)


def bilinear_matrix(size: int, output: int, reference: Tensor) -> Tensor:
    """Return the weights (output, size) of a bilinear resize with aligned corners.

    In float64: rounding must not push the last position beyond the last source pixel, and a product
    of two such matrices should not lose precision.
    """
    positions = (
        torch.arange(output, device=reference.device).double() * (size - 1) / max(output - 1, 1)
    )
    sources = torch.arange(size, device=reference.device)
    return (1.0 - (positions[:, None] - sources).abs()).clamp_min(0.0)
