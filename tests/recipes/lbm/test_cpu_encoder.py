"""overt/recipes/lbm/cpu_encoder.py: the encoder's features, with fewer operations."""

import pytest
import torch
from small_recipes import small_lbm
from torch import nn

from overt.recipes.lbm.cpu_encoder import CpuEncoder, StridedConvolution, Winograd


@pytest.mark.parametrize("size", [(8, 12), (6, 4), (2, 2)])  # the latter two are no whole tiles
@torch.no_grad()
def test_convolutions_by_matrix_products(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    image = torch.randn(1, 3, *size)
    cells = image[0].flatten(1).T
    for stride, form in ((1, Winograd), (2, StridedConvolution)):
        convolution = nn.Conv2d(3, 5, 3, stride, padding=1)
        wanted = convolution(image)[0].flatten(1).T
        torch.testing.assert_close(form(convolution, size)(cells), wanted, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_features_are_those_of_the_backbone() -> None:
    backbone = small_lbm(input_size=(96, 64)).backbone.eval()
    for name, value in backbone.named_buffers():
        if name.endswith("running_mean"):
            value.normal_(std=0.2)
        if name.endswith("running_var"):
            value.uniform_(0.5, 1.5)
    frame = torch.randint(256, (1, 3, 96, 64)).float()
    wanted = backbone(frame)
    encoded = CpuEncoder(backbone)(frame)
    torch.testing.assert_close(encoded.view(wanted.shape), wanted, atol=1e-5, rtol=1e-4)
    assert isinstance(backbone.layer1[1], nn.BatchNorm2d)  # the model itself is unchanged
