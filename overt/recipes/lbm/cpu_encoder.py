"""LBM's frame encoder with fewer operations, for runtimes that multiply matrices on a CPU.

The same function up to rounding: norms folded into convolutions, 3 x 3 convolutions by Winograd's
algorithm (1509.09308), the last 1 x 1 convolutions multiplied in advance and applied before
resizing. A map is a matrix of cells by channels. For inference only.

Letters: C channels, O output channels, h x w cells, T tiles of 4 x 4 cells.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from overt.recipes.lbm.backbone import Backbone, BasicBlock
from overt.recipes.lbm.pyramid import Resize

TILE = 4  # output cells of a tile along each axis, made of TILE + 2 input cells
# Lavin and Gray's F(4, 3), from the points 0, 1, -1, 2, -2 and infinity.
FROM_INPUT = (
    (4.0, 0.0, -5.0, 0.0, 1.0, 0.0),
    (0.0, -4.0, -4.0, 1.0, 1.0, 0.0),
    (0.0, 4.0, -4.0, -1.0, 1.0, 0.0),
    (0.0, -2.0, -1.0, 2.0, 1.0, 0.0),
    (0.0, 2.0, -1.0, -2.0, 1.0, 0.0),
    (0.0, 4.0, 0.0, -5.0, 0.0, 1.0),
)
FROM_FILTER = (
    (1 / 4, 0.0, 0.0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0.0, 0.0, 1.0),
)
TO_OUTPUT = (
    (1.0, 1.0, 1.0, 1.0, 1.0, 0.0),
    (0.0, 1.0, -1.0, 2.0, -2.0, 0.0),
    (0.0, 1.0, 1.0, 4.0, 4.0, 0.0),
    (0.0, 1.0, -1.0, 8.0, -8.0, 1.0),
)


class Winograd(nn.Module):
    """A 3 x 3 convolution of stride 1 and padding 1 with a quarter of the multiplications."""

    zeros: Tensor  # (1, C) what lies outside of the map
    cells: Tensor  # (36 * T,) rows of the input that each position of each tile reads
    filters: Tensor  # (36, C, O)
    from_input: Tensor
    to_output: Tensor

    def __init__(self, convolution: nn.Conv2d, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size
        self.tiles = (-(-size[0] // TILE), -(-size[1] // TILE))
        weight = convolution.weight.detach().double()  # (O, C, 3, 3)
        transform = torch.tensor(FROM_FILTER, dtype=torch.float64)
        filters = torch.einsum("ik,ocku,ju->ijco", transform, weight, transform)
        self.register_buffer("filters", filters.flatten(0, 1).float().contiguous())
        self.register_buffer("zeros", torch.zeros(1, weight.shape[1]))
        self.register_buffer("cells", _tile_cells(size, self.tiles))
        self.register_buffer("from_input", torch.tensor(FROM_INPUT))
        self.register_buffer("to_output", torch.tensor(TO_OUTPUT))
        assert convolution.bias is not None, "norms were folded"
        self.bias = convolution.bias

    def forward(self, x: Tensor) -> Tensor:
        """Convolve a map (h * w, C); returns (h * w, O)."""
        side = len(self.from_input)
        (rows, columns), (height, width) = self.tiles, self.size
        tiles = torch.cat([x, self.zeros]).index_select(0, self.cells)  # (36 * T, C)
        tiles = self.from_input @ tiles.view(side, -1)
        tiles = self.from_input @ tiles.view(side, side, -1)
        mixed = tiles.view(side * side, rows * columns, -1) @ self.filters  # (36, T, O)
        mixed = self.to_output @ mixed.view(side, -1)
        mixed = self.to_output @ mixed.view(TILE, side, -1)
        mixed = mixed.view(TILE, TILE, rows, columns, -1).permute(2, 0, 3, 1, 4)
        if (rows * TILE, columns * TILE) != self.size:
            mixed = mixed.reshape(rows * TILE, columns * TILE, -1)[:height, :width]
        return mixed.reshape(height * width, -1) + self.bias


class StridedConvolution(nn.Module):
    """A 3 x 3 convolution of stride 2 and padding 1 as one matrix product."""

    zeros: Tensor
    cells: Tensor  # (cells of the result * 9,)

    def __init__(self, convolution: nn.Conv2d, size: tuple[int, int]) -> None:
        super().__init__()
        channels = convolution.in_channels
        self.width = 9 * channels
        self.register_buffer("zeros", torch.zeros(1, channels))
        rows, columns = torch.arange(0, size[0], 2), torch.arange(0, size[1], 2)
        around = torch.arange(-1, 2)
        row = (rows[:, None] + around)[:, None, :, None]  # (h / 2, 1, 3, 1)
        column = (columns[:, None] + around)[None, :, None, :]  # (1, w / 2, 1, 3)
        self.register_buffer("cells", _numbers(row, column, size).flatten())
        weight = convolution.weight.detach().permute(0, 2, 3, 1).flatten(1)  # (O, 9 * C)
        self.multiply = make_linear(weight, convolution.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve a map (h * w, C); returns (h * w / 4, O)."""
        read = torch.cat([x, self.zeros]).index_select(0, self.cells).view(-1, self.width)
        result: Tensor = self.multiply(read)
        return result


class MatrixBlock(nn.Module):
    """A `BasicBlock` on maps (h * w, C)."""

    def __init__(self, block: BasicBlock, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size
        self.shrinks = block.conv1.stride[0] == 2
        self.first = (StridedConvolution if self.shrinks else Winograd)(block.conv1, size)
        after = (size[0] // 2, size[1] // 2) if self.shrinks else size
        self.second = Winograd(block.conv2, after)
        self.shortcut: nn.Module = nn.Identity()
        if self.shrinks:
            assert isinstance(block.downsample, nn.Sequential)
            self.shortcut = _pointwise(block.downsample[0])

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(F.relu(self.first(x)))
        if self.shrinks:
            x = x.view(*self.size, -1)[::2, ::2].reshape(len(y), -1)
        return F.relu(y + self.shortcut(x))


class WinogradStages(nn.Module):
    """The three stages of a backbone with folded norms, on maps (h * w, C)."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        height, width = backbone.frame_pos_embedding.shape[2:]
        full, halves, quarters = ((height // part, width // part) for part in (1, 2, 4))
        self.stem = backbone.layer1[:4]
        blocks = [module for module in backbone.modules() if isinstance(module, BasicBlock)]
        sizes = (full, full, full, halves, halves, quarters)
        self.blocks = nn.ModuleList(map(MatrixBlock, blocks, sizes))

    def forward(self, pixels: Tensor) -> list[Tensor]:
        x = self.stem(pixels)[0].flatten(1).T
        maps = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number % 2:
                maps.append(x)
        return maps


class CpuEncoder(nn.Module):
    """What a `Backbone` computes for one frame of the model's size."""

    mean: Tensor  # (3, 1, 1) in 0..255
    rows: Tensor  # (h, h / 2 + h / 4): the weight of each row of the two coarse maps
    fine_mix: Tensor  # (c, C)
    positions: Tensor  # (h * w, C)

    def __init__(
        self, backbone: Backbone, make_stages: Callable[[Backbone], nn.Module] = WinogradStages
    ) -> None:
        super().__init__()
        backbone = copy.deepcopy(backbone)
        backbone.fold_norms()
        height, width = backbone.frame_pos_embedding.shape[2:]
        self.size = (height, width)
        # Not the mean too: the first convolution pads with zeros, which are the mean.
        self.register_buffer("mean", 255 * backbone.mean)
        first = backbone.layer1[0]
        assert isinstance(first, nn.Conv2d), "the stem"
        first.weight = nn.Parameter(first.weight / (255 * backbone.std), requires_grad=False)
        self.stages = make_stages(backbone)
        fusion = _pointwise(backbone.fusion[0])
        projections = [
            _pointwise(part) for part in (backbone.proj1, backbone.proj2, backbone.proj3)
        ]
        parts = fusion.weight.chunk(3, dim=1)  # (C, c) each
        bias = fusion.bias.clone()
        for part, projection in zip(parts, projections, strict=True):
            bias += part @ projection.bias  # of resized ones too: the weights of a cell sum to one
        fine, middle, coarse = (
            part @ projection.weight for part, projection in zip(parts, projections, strict=True)
        )
        self.register_buffer("fine_mix", fine.T.contiguous())
        self.mixes = nn.ModuleList((make_linear(middle, bias), make_linear(coarse, None)))
        self.resizes: Iterable[Resize] = nn.ModuleList(  # type: ignore[assignment]
            (backbone.twice, backbone.four_times)
        )
        rows = (backbone.twice.rows, backbone.four_times.rows)
        self.register_buffer("rows", torch.cat(rows, dim=1))
        positions = backbone.frame_pos_embedding.detach()[0].flatten(1).T
        self.register_buffer("positions", positions.contiguous())

    def forward(self, frame: Tensor) -> Tensor:
        """Encode a frame (1, 3, H, W) in 0..255 as features (h * w, C)."""
        fine, *coarse = self.stages(frame - self.mean)
        wide = []
        for part, resize, mix in zip(coarse, self.resizes, self.mixes, strict=True):
            mixed = mix(part).view(resize.rows.shape[1], resize.columns.shape[1], -1)
            wide.append((resize.columns @ mixed).flatten(1))  # (h / 2 or h / 4, w * C)
        resized = (self.rows @ torch.cat(wide)).view(len(fine), -1)
        features = torch.addmm(resized, fine, self.fine_mix)
        return F.gelu(features) + self.positions


def make_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a frozen linear map (outputs, inputs) with the given weights."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().contiguous(), requires_grad=False)
    return linear


def _pointwise(convolution: nn.Module) -> nn.Linear:
    assert isinstance(convolution, nn.Conv2d), "a 1 x 1 convolution"
    return make_linear(convolution.weight.flatten(1), convolution.bias)


def _tile_cells(size: tuple[int, int], tiles: tuple[int, int]) -> Tensor:
    """Number the cells that tiles read, (36 * T,): rows and columns of a tile, then the tiles."""
    within = torch.arange(TILE + 2) - 1
    row = within[:, None] + TILE * torch.arange(tiles[0])  # (6, tiles)
    column = within[:, None] + TILE * torch.arange(tiles[1])
    return _numbers(row[:, None, :, None], column[None, :, None, :], size).flatten()


def _numbers(row: Tensor, column: Tensor, size: tuple[int, int]) -> Tensor:
    """Number cells row by row; outside of the map it is the number after the last."""
    height, width = size
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return torch.where(inside, row * width + column, height * width)
