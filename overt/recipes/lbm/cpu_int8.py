"""LBM's convolutions and large products with 8 bits, for runtimes that have them on a CPU.

Weights are rounded per output channel. What the encoder convolves is rounded by ranges measured on
given frames: exported, that is QuantizeLinear and DequantizeLinear, from which ONNX Runtime makes
integer convolutions. What a product multiplies is rounded by its own range, with the operator that
ONNX Runtime has for that. Other mathematics than the model's: features and tracks change a little.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from overt.recipes.lbm.backbone import Backbone, BasicBlock

# Products with fewer inputs or outputs stay float32: with 64 inputs, 8 bits gained nothing.
SMALLEST_PRODUCT = 128


class Quantize(nn.Module):
    """Round to 256 levels between the extremes seen before `measuring` was set to false."""

    def __init__(self) -> None:
        super().__init__()
        self.measuring = True
        self.low = self.high = 0.0

    def forward(self, x: Tensor) -> Tensor:
        if self.measuring:
            low, high = torch.aminmax(x)
            self.low, self.high = min(self.low, low.item()), max(self.high, high.item())
            return x
        scale = max(self.high - self.low, 1e-6) / 255
        return torch.fake_quantize_per_tensor_affine(x, scale, round(-self.low / scale), 0, 255)


class Convolution(nn.Module):
    """A convolution with 8-bit weights; its input is to be quantized before."""

    scale: Tensor  # (O,)
    zero: Tensor  # (O,)

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution
        self.register_buffer("scale", _scales(convolution.weight))
        self.register_buffer("zero", torch.zeros(len(self.scale), dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        each = self.convolution
        # Rounded here and not in advance, so that the exported file says that they are integers.
        weight = torch.fake_quantize_per_channel_affine(
            each.weight, self.scale, self.zero, 0, -128, 127
        )
        return F.conv2d(x, weight, each.bias, each.stride, each.padding)


class Block(nn.Module):
    """A `BasicBlock` with folded norms."""

    def __init__(self, block: BasicBlock) -> None:
        super().__init__()
        self.first, self.second = Convolution(block.conv1), Convolution(block.conv2)
        self.shortcut: nn.Module = nn.Identity()
        if isinstance(block.downsample, nn.Sequential):
            projection = block.downsample[0]
            assert isinstance(projection, nn.Conv2d), "a 1 x 1 convolution"
            self.shortcut = nn.Sequential(Convolution(projection), Quantize())
        self.quantize = nn.ModuleList(Quantize() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden, added, result = self.quantize
        y = added(self.second(hidden(F.relu(self.first(x)))))
        rounded: Tensor = result(F.relu(y + self.shortcut(x)))
        return rounded


class Int8Stages(nn.Module):
    """The three stages of a backbone with folded norms; the stem stays float32."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        convolution, _, relu, pool = list(backbone.layer1)[:4]  # the norm was folded
        # Pooled first, which is the same: otherwise ONNX Runtime pools integers, ten times slower.
        self.stem = nn.Sequential(convolution, pool, relu, Quantize())
        blocks = [module for module in backbone.modules() if isinstance(module, BasicBlock)]
        self.blocks = nn.ModuleList(map(Block, blocks))

    def forward(self, pixels: Tensor) -> list[Tensor]:
        x = self.stem(pixels)
        maps = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number % 2:
                maps.append(x.permute(0, 2, 3, 1).flatten(0, 2))
        return maps


class Product(nn.Module):
    """A linear map with 8-bit weights, of an input rounded to 256 levels between its extremes.

    The extremes are those of all rows: a row's result depends a little on the others.
    """

    weight: Tensor  # (I, O) int8
    scale: Tensor  # (O,)

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("scale", _scales(linear.weight))
        rounded = (linear.weight.detach() / self.scale.unsqueeze(1)).round().to(torch.int8)
        self.register_buffer("weight", rounded.T.contiguous())
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            product: Tensor = torch.onnx.ops.symbolic(
                "com.microsoft::DynamicQuantizeMatMul",
                (x, self.weight, self.scale, None, self.bias),
                dtype=x.dtype,
                shape=(*x.shape[:-1], len(self.scale)),
                version=1,
            )
            return product
        low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)  # zero stays exact
        step = torch.where(high > low, (high - low) / 255, 1.0)
        zero = (-low / step).round()
        levels = ((x / step).round() + zero).clamp(0, 255) - zero
        product = levels @ self.weight.to(x.dtype) * (step * self.scale)
        return product if self.bias is None else product + self.bias


def round_products(module: nn.Module) -> None:
    """Replace the large linear maps of a module by their 8-bit form."""
    for part in list(module.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, nn.Linear) and min(child.weight.shape) >= SMALLEST_PRODUCT:
                setattr(part, name, Product(child))


@torch.no_grad()
def calibrate(encoder: nn.Module, frames: Tensor) -> None:
    """Measure ranges on frames (F, 3, H, W) in 0..255 and round from now on."""
    for frame in torch.split(frames, 1):
        encoder(frame)
    for module in encoder.modules():
        if isinstance(module, Quantize):
            module.measuring = False


def _scales(weight: Tensor) -> Tensor:
    """Return the step between two levels of each output of a weight (O, ...)."""
    return weight.detach().abs().flatten(1).amax(1).clamp(min=1e-6) / 127
