"""overt/recipes/blade/resnet.py: torchvision's keys, three maps, and norms that mix no samples."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from overt.recipes.blade.norm import FrozenBatchNorm2d
from overt.recipes.blade.resnet import Bottleneck, ResNet, make_norm
from overt.tools.plan.cuda_rules import as_on_cuda


@pytest.mark.parametrize(("stem", "stride"), [("conv7", 8), ("conv3", 4)])
def test_maps_are_an_eighth_a_sixteenth_and_a_thirty_second(stem: str, stride: int) -> None:
    model = ResNet(8, (1, 1, 1, 1), stem, "group").eval()
    maps = model(torch.rand(2, 3, 64, 96))
    assert [each.shape[1] for each in maps] == model.channels == [64, 128, 256]
    sides = [(64 // (stride * factor), 96 // (stride * factor)) for factor in (1, 2, 4)]
    assert [tuple(each.shape[2:]) for each in maps] == sides


def test_keys_are_those_of_torchvision() -> None:
    keys = set(ResNet(64, (3, 4, 6, 3), "conv7", "frozen").state_dict())
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv3.weight"} <= keys
    assert {"layer1.0.downsample.0.weight", "layer2.0.downsample.1.running_var"} <= keys
    assert "layer1.1.downsample.0.weight" not in keys
    assert "layer4.2.bn3.bias" in keys
    assert not any(key.startswith("fc") for key in keys)


@pytest.mark.parametrize("kind", ["group", "frozen"])
def test_samples_do_not_mix(kind: str) -> None:
    torch.manual_seed(0)
    model = ResNet(8, (1, 1, 1, 1), "conv3", kind).train()
    images = torch.rand(3, 3, 32, 32)
    together, alone = model(images)[-1], model(images[:1])[-1]
    torch.testing.assert_close(together[:1], alone, atol=1e-5, rtol=1e-4)


def test_group_norm_fits_any_width() -> None:
    for channels in (1, 3, 4, 8, 9, 12, 19, 64, 256):
        norm = make_norm("group", channels)
        assert isinstance(norm, nn.GroupNorm)
        assert channels % norm.num_groups == 0
    assert isinstance(make_norm("frozen", 8), FrozenBatchNorm2d)


@pytest.mark.parametrize("kind", ["group", "frozen"])
def test_norms_are_followed_by_relu_and_the_last_by_the_addition(kind: str) -> None:
    block = Bottleneck(16, 8, 2, kind).eval()
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    maps = torch.randn(2, 16, 9, 9)
    assert block.downsample is not None
    inner = F.relu(block.bn1(block.conv1(maps)))
    inner = F.relu(block.bn2(block.conv2(inner)))
    expected = F.relu(block.bn3(block.conv3(inner)) + block.downsample(maps))
    assert torch.equal(block(maps), expected)


@pytest.mark.parametrize("kind", ["group", "frozen"])
def test_on_cuda_maps_stay_channels_last_and_16_bit(kind: str) -> None:
    with FakeTensorMode(), as_on_cuda():
        model = ResNet(8, (1, 1, 1, 1), "conv7", kind)
        with torch.autocast("cuda", torch.bfloat16):
            maps = model(torch.rand(2, 3, 64, 96, device="cuda"))
        for each in maps:
            assert each.dtype == torch.bfloat16
            assert each.is_contiguous(memory_format=torch.channels_last)
        sum(each.float().sum() for each in maps).backward()
        assert all(each.grad is not None for each in model.parameters() if each.requires_grad)
