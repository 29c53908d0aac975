"""ResNet with bottlenecks and torchvision's keys; returns the maps of its last three stages."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overt.ops.convolve import Conv2d
from overt.ops.group_norm.api import group_norm
from overt.ops.max_pool.api import max_pool
from overt.recipes.blade.norm import FrozenBatchNorm2d

EXPANSION = 4


class GroupNorm(nn.GroupNorm):
    """Group norm fused with the following addition and ReLU; keeps the dtype of its input."""

    def forward(self, maps: Tensor, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        return group_norm(maps, self.weight, self.bias, self.num_groups, self.eps, relu, residual)


def make_norm(kind: str, channels: int) -> nn.Module:
    """Return group norm, which keeps samples independent, or frozen batch norm."""
    if kind == "frozen":
        return FrozenBatchNorm2d(channels)
    # At least four channels in a group, where the number allows it.
    return GroupNorm(math.gcd(32, max(channels // 4, 1), channels), channels)


def norm_relu(norm: nn.Module, maps: Tensor, residual: Tensor | None = None) -> Tensor:
    """Normalize, add `residual` if it is given, and apply ReLU."""
    if isinstance(norm, GroupNorm):
        return norm(maps, relu=True, residual=residual)  # type: ignore[no-any-return]
    maps = norm(maps)
    return F.relu(maps if residual is None else maps + residual)


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = Conv2d(inputs, width, 1, bias=False)
        self.bn1 = make_norm(norm, width)
        self.conv2 = Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = make_norm(norm, width)
        self.conv3 = Conv2d(width, outputs, 1, bias=False)
        self.bn3 = make_norm(norm, outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                Conv2d(inputs, outputs, 1, stride, bias=False), make_norm(norm, outputs)
            )

    def forward(self, maps: Tensor) -> Tensor:
        skipped = maps if self.downsample is None else self.downsample(maps)
        inner = norm_relu(self.bn1, self.conv1(maps))
        inner = norm_relu(self.bn2, self.conv2(inner))
        return norm_relu(self.bn3, self.conv3(inner), skipped)


class ResNet(nn.Module):
    """Encode pictures as maps at 1/8, 1/16 and 1/32 of their size; conv3: twice as large."""

    def __init__(self, width: int, blocks: Sequence[int], stem: str, norm: str) -> None:
        super().__init__()
        small = stem == "conv3"
        self.pool = not small
        kernel = 3 if small else 7
        self.conv1 = Conv2d(3, width, kernel, 2, kernel // 2, bias=False)
        self.bn1 = make_norm(norm, width)
        inputs = width
        self.channels: list[int] = []
        for index, count in enumerate(blocks):
            inner = width * 2**index
            layers = []
            for block in range(count):
                stride = 2 if index > 0 and block == 0 else 1
                layers.append(Bottleneck(inputs, inner, stride, norm))
                inputs = EXPANSION * inner
            self.add_module(f"layer{index + 1}", nn.Sequential(*layers))
            self.channels.append(inputs)
        self.channels = self.channels[1:]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> list[Tensor]:
        if images.is_cuda:  # the layout that tensor cores convolve in
            images = images.contiguous(memory_format=torch.channels_last)
        maps = norm_relu(self.bn1, self.conv1(images))
        if self.pool:
            maps = max_pool(maps, 3, 2, 1)
        features = []
        for index in range(1, 5):
            maps = self.get_submodule(f"layer{index}")(maps)
            features.append(maps)
        return features[1:]
