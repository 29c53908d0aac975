"""overt/recipes/pcdiff/voxel_network.py: sizes and keys as published, local features."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from overt.recipes.pcdiff.voxel_network import (
    VoxelNetwork,
    cell_index,
    enlarged,
    local_coordinate,
    pool_max,
)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_sizes_and_keys_are_the_published_ones() -> None:
    model = VoxelNetwork(width=32, grid=32, levels=3, offsets=7, side=512, sigma=2.0)
    unet = count(model.encoder.unet3d)
    assert (count(model.encoder) - unet, unet) == (27_232, 1_025_312)
    assert (count(model.decoder_normal), count(model.decoder_offset)) == (16_067, 16_661)
    keys = set(model.state_dict())
    stem = "encoder.unet3d.encoders.1.basic_module.SingleConv2."
    assert {stem + key for key in ("groupnorm.weight", "groupnorm.bias", "conv.weight")} <= keys
    assert {"encoder.blocks.4.shortcut.weight", "encoder.fc_pos.bias"} <= keys
    assert {"decoder_offset.fc_c.4.weight", "decoder_normal.blocks.0.fc_1.bias"} <= keys
    assert "decoder_normal.blocks.0.shortcut.weight" not in keys
    widths = [conv.weight.shape[:2] for conv in model.modules() if isinstance(conv, nn.Conv3d)]
    assert [tuple(shape) for shape in widths] == [
        (32, 32), (32, 32), (32, 32), (64, 32), (64, 64), (128, 64),
        (64, 192), (64, 64), (32, 96), (32, 32), (32, 32),
    ]  # fmt: skip


def test_points_share_the_features_of_their_cell() -> None:
    points = torch.tensor([[[0.1, 0.1, 0.1], [0.2, 0.1, 0.1], [0.6, 0.1, 1.2]]])
    cells = cell_index(points, 2)
    assert cells.tolist() == [[0, 0, 5]]
    features = torch.tensor([[[1.0, -3.0], [2.0, -4.0], [-5.0, -6.0]]])
    expected = torch.tensor([[[2.0, -3.0], [2.0, -3.0], [-5.0, -6.0]]])
    torch.testing.assert_close(pool_max(features, cells, 8), expected)
    torch.testing.assert_close(
        local_coordinate(points, 2)[0, 2], torch.tensor([0.2, 0.2, 0.4]), atol=1e-5, rtol=0
    )


def test_clouds_of_a_batch_do_not_touch() -> None:
    torch.manual_seed(0)
    model = VoxelNetwork(width=8, grid=4, levels=2, offsets=2, side=8, sigma=2.0).eval()
    points = torch.rand((2, 40, 3))
    with torch.inference_mode():
        both, first = model(points), model(points[:1])
    torch.testing.assert_close(both[:1], first, atol=1e-4, rtol=1e-4)
    assert both.shape == (2, 8, 8, 8)


@pytest.mark.parametrize("size", [(4, 6, 2), (5, 6, 3)])
def test_enlarged_grids_are_those_of_torch(size: tuple[int, int, int]) -> None:
    grids = torch.randn(2, 3, 2, 3, 1).contiguous(memory_format=torch.channels_last_3d)
    grids.requires_grad_()
    found = enlarged(grids, torch.Size(size))
    expected = functional.interpolate(grids, size=size, mode="nearest")
    assert torch.equal(found, expected)
    weights = torch.randn(expected.shape)
    gradients = [torch.autograd.grad(result, grids, weights)[0] for result in (found, expected)]
    torch.testing.assert_close(*gradients)
    if size == (4, 6, 2):  # twice as large
        assert found.is_contiguous(memory_format=torch.channels_last_3d)
