"""The feature network of CoTracker3 against the textbook: every convolution with its bias, then
torch's instance normalisation."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from overt.recipes.cotracker3.blocks import FeatureNetwork, ResidualBlock


def make() -> tuple[FeatureNetwork, Tensor]:
    torch.manual_seed(0)
    network = FeatureNetwork(latent_dim=32)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                module.bias.normal_(std=3)
    return network, torch.randint(0, 256, (3, 3, 40, 56), dtype=torch.uint8)


def textbook(network: FeatureNetwork, frames: Tensor) -> Tensor:
    def block(part: ResidualBlock, x: Tensor) -> Tensor:
        y = F.relu(F.instance_norm(part.conv1(x)))
        y = F.relu(F.instance_norm(part.conv2(y)))
        return F.relu(y + (x if part.downsample is None else F.instance_norm(part.downsample(x))))

    size = (frames.shape[-2] // 4, frames.shape[-1] // 4)
    x = F.relu(F.instance_norm(network.conv1(2 * (frames / 255) - 1)))
    scales = []
    for layer in (network.layer1, network.layer2, network.layer3, network.layer4):
        x = block(layer[1], block(layer[0], x))
        scales.append(F.interpolate(x, size, mode="bilinear", align_corners=True))
    return network.conv3(F.relu(F.instance_norm(network.conv2(torch.cat(scales, dim=1)))))


def assert_follows_the_textbook(network: FeatureNetwork, frames: Tensor, tolerance: float) -> None:
    names, parameters = zip(*network.named_parameters(), strict=True)
    expected = textbook(network.double(), frames.double())
    weights = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weights).sum(), parameters)
    parameters = tuple(network.float().parameters())
    result = network(frames)
    found = torch.autograd.grad((result * weights).sum(), parameters)
    assert (result - expected).norm() < tolerance * expected.norm()
    for name, one, other in zip(names, found, wanted, strict=True):
        if name.endswith("bias") and name != "conv3.bias":
            assert not one.any(), name  # there, for the optimizer, and exactly what it should be
            continue
        assert (one - other).norm() < 20 * tolerance * other.norm(), name


def test_biases_before_a_norm_change_nothing_and_have_a_gradient_of_zero() -> None:
    assert_follows_the_textbook(*make(), tolerance=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_too() -> None:
    network, frames = make()
    assert_follows_the_textbook(network.cuda(), frames.cuda(), tolerance=1e-5)
