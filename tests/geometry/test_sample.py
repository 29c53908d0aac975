"""overt/geometry/sample.py: values inside and outside of images, and of resized ones."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from overt.geometry.sample import bilinear_sample, resize_bilinear


def ramp(height: int, width: int) -> Tensor:
    """An image whose two channels hold x and y, (1, 2, height, width)."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([x, y]).float()[None]


def test_a_ramp_reads_its_own_coordinates_clamped_to_the_border() -> None:
    points = torch.rand(1, 50, 2) * 30 - 10
    values = bilinear_sample(ramp(7, 9), points)
    expected = torch.minimum(points.clamp(min=0), torch.tensor([8.0, 6.0]))
    torch.testing.assert_close(values, expected.mT, atol=1e-5, rtol=0)


def test_zeros_padding_fades_over_one_pixel() -> None:
    image = torch.ones(1, 1, 4, 5)
    points = torch.tensor([[[-1.0, 2.0], [-0.75, 2.0], [0.0, 0.0], [4.5, 3.5], [9.0, 1.0]]])
    values = bilinear_sample(image, points, padding="zeros")[0, 0]
    torch.testing.assert_close(values, torch.tensor([0.0, 0.25, 1.0, 0.25, 0.0]))


def test_points_keep_their_shape() -> None:
    assert bilinear_sample(torch.rand(2, 3, 8, 6), torch.rand(2, 4, 5, 2)).shape == (2, 3, 4, 5)


@pytest.mark.parametrize("size", [(5, 7), (4, 9), (12, 3), (1, 1), (5, 14)])
def test_resize_equals_torch_with_aligned_corners(size: tuple[int, int]) -> None:
    images = torch.randn(2, 3, 5, 7, dtype=torch.float64, requires_grad=True)
    expected = F.interpolate(images, size, mode="bilinear", align_corners=True)
    resized = resize_bilinear(images, size)
    torch.testing.assert_close(resized, expected, rtol=0, atol=1e-6)
    gradient = torch.randn_like(expected)
    found, wanted = (torch.autograd.grad(y, images, gradient)[0] for y in (resized, expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
