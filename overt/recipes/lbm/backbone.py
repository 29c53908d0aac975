"""The frame encoder of LBM: the first stages of a ResNet-18, fused at a quarter of the image size.

Letters: F frames, C channels, H x W pixels of the model, h x w cells. Modules are named after the
keys of the published weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils.checkpoint import checkpoint

from overt.ops.max_pool.api import max_pool
from overt.recipes.lbm.pyramid import Resize

STRIDE = 4  # pixels per cell
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, RGB in 0..1


class BatchNorm(nn.BatchNorm2d):
    """Batch norm whose running statistics are updated once, even if a stage is recomputed."""

    is_replayed = False

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.is_replayed):
            return super().forward(x)
        assert self.running_mean is not None, "made with statistics"
        assert self.running_var is not None, "made with statistics"
        scratch = self.running_mean.clone(), self.running_var.clone()
        return F.batch_norm(x, *scratch, self.weight, self.bias, training=True, eps=self.eps)


class MaxPool(nn.Module):
    """Max pooling, with a deterministic gradient on request."""

    def __init__(self, size: int, stride: int, padding: int) -> None:
        super().__init__()
        self.size, self.stride, self.padding = size, stride, padding

    def forward(self, images: Tensor) -> Tensor:
        return max_pool(images, self.size, self.stride, self.padding)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut (ResNet, 1512.03385)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = BatchNorm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = BatchNorm(channels)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), BatchNorm(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x), inplace=True)


class Backbone(nn.Module):
    """Encode frames at a quarter of their size and add a learned position map."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        input_size: tuple[int, int],
        channels: int = 256,
        width: int = 64,  # channels of the first stage; the next have twice and four times as many
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.recompute = recompute
        cells = (input_size[0] // STRIDE, input_size[1] // STRIDE)
        self.frame_pos_embedding = nn.Parameter(torch.empty(1, channels, *cells))
        nn.init.trunc_normal_(self.frame_pos_embedding, std=0.02)
        self.layer1 = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            BatchNorm(width),
            nn.ReLU(inplace=True),
            MaxPool(3, stride=2, padding=1),
            nn.Sequential(BasicBlock(width, width, 1), BasicBlock(width, width, 1)),
        )
        self.layer2 = nn.Sequential(
            BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width, 1)
        )
        self.layer3 = nn.Sequential(
            BasicBlock(2 * width, 4 * width, 2), BasicBlock(4 * width, 4 * width, 1)
        )
        self.proj1 = nn.Conv2d(width, width, 1)
        self.proj2 = nn.Conv2d(2 * width, width, 1)
        self.proj3 = nn.Conv2d(4 * width, width, 1)
        self.fusion = nn.Sequential(
            nn.Conv2d(3 * width, channels, 1), BatchNorm(channels), nn.GELU()
        )
        self.twice = Resize((cells[0] // 2, cells[1] // 2), cells)
        self.four_times = Resize((cells[0] // 4, cells[1] // 4), cells)
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)

    def forward(self, frames: Tensor) -> Tensor:
        """Encode frames (F, 3, H', W') of any size, in 0..255, as features (F, h, w, C)."""
        fine = self._stage(self._start, frames)
        middle = self.layer2(fine)
        coarse = self.layer3(middle)
        return self._stage(self._fuse, fine, middle, coarse)

    def _start(self, frames: Tensor) -> Tensor:
        pixels = frames.to(self.mean.dtype) / 255
        if frames.shape[-2:] != self.input_size:
            pixels = F.interpolate(pixels, self.input_size, mode="bilinear", align_corners=False)
        pixels = ((pixels - self.mean) / self.std).to(self.proj1.weight.dtype)
        stage: Tensor = self.layer1(pixels.contiguous(memory_format=torch.channels_last))
        return stage

    def fold_norms(self) -> None:
        """Fold the norms into the preceding convolutions, permanently, for inference."""
        self.eval().requires_grad_(False)
        pairs: list[tuple[nn.Module, str, str]] = [(self.layer1, "0", "1"), (self.fusion, "0", "1")]
        for block in (module for module in self.modules() if isinstance(module, BasicBlock)):
            pairs += [(block, "conv1", "bn1"), (block, "conv2", "bn2")]
            if isinstance(block.downsample, nn.Sequential):
                pairs.append((block.downsample, "0", "1"))
        for owner, convolution, norm in pairs:
            fused = fuse_conv_bn_eval(getattr(owner, convolution), getattr(owner, norm))
            setattr(owner, convolution, fused)
            setattr(owner, norm, nn.Identity())
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                weight = module.weight.contiguous(memory_format=torch.channels_last)
                module.weight = nn.Parameter(weight, requires_grad=False)

    def change_type(self, dtype: torch.dtype) -> None:
        """Cast the weights; pixels are still normalized in float32."""
        mean, std = self.mean, self.std
        self.to(dtype)
        self.mean, self.std = mean, std

    def _fuse(self, fine: Tensor, middle: Tensor, coarse: Tensor) -> Tensor:
        # Memory is channels-last, so moving the channels to the end copies nothing.
        parts = (
            self.proj1(fine).permute(0, 2, 3, 1),
            self.twice(self.proj2(middle).permute(0, 2, 3, 1)),
            self.four_times(self.proj3(coarse).permute(0, 2, 3, 1)),
        )
        fused = self.fusion(torch.cat(parts, dim=-1).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        # Added in the order of the maps: in the other one the sum of its gradient over frames takes
        # 4.6 ms of a step on an H200, and every frame reads the table with gaps.
        table = self.frame_pos_embedding.permute(0, 2, 3, 1).to(fused.dtype).contiguous()
        features: Tensor = fused + table
        return features.contiguous()

    def _stage(self, stage: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Run a stage; with `recompute` store only its inputs for the backward pass.

        The first and the last stage need most of the memory and little of the computation.
        """
        if not (self.recompute and torch.is_grad_enabled()):
            return stage(*inputs)
        result: Tensor = checkpoint(
            stage,
            *inputs,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=self._contexts,
        )
        return result

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), self._replay()

    @contextmanager
    def _replay(self) -> Iterator[None]:
        norms = [module for module in self.modules() if isinstance(module, BatchNorm)]
        for norm in norms:
            norm.is_replayed = True
        try:
            yield
        finally:
            for norm in norms:
                norm.is_replayed = False
