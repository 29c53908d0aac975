"""Bilinear sampling: what the values are inside and outside, and that squares agree with points."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from overt.geometry.sample import SquareTaps, bilinear_sample, mix_taps, resize_bilinear


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


@pytest.mark.parametrize("radius", [0, 1, 3])
@pytest.mark.parametrize(("height", "width"), [(6, 9), (1, 4), (1, 1)])
def test_squares_are_the_points_around_the_centre(radius: int, height: int, width: int) -> None:
    torch.manual_seed(radius)
    image = torch.rand(1, 3, height, width)
    far = torch.tensor([[-40.0, 3.0], [500.25, -77.5], [0.0, 0.0], [2.0, 1.0]])
    centres = torch.cat([torch.rand(20, 2) * 12 - 2, far])  # (K, 2)
    numbers, weights = SquareTaps(radius)(centres, torch.tensor([width, height]))
    pixels = image[0].flatten(1).T[numbers]  # (K, S*S, 3)
    squares = mix_taps(weights, pixels)  # (K, P*P, 3)

    steps = torch.arange(-radius, radius + 1)
    offsets = torch.cartesian_prod(steps, steps)  # x varies slowest
    expected = bilinear_sample(image, (centres[:, None] + offsets)[None])[0].permute(1, 2, 0)
    torch.testing.assert_close(squares, expected, atol=1e-5, rtol=0)


def test_every_centre_may_have_a_map_of_its_own_size() -> None:
    centres = torch.rand(2, 5, 2) * 10
    sizes = torch.tensor([[12, 10], [6, 5]])  # (2, 2): width and height of two maps
    together = SquareTaps(1)(centres, sizes[:, None])
    for level in range(2):
        alone = SquareTaps(1)(centres[level], sizes[level])
        assert torch.equal(together[0][level], alone[0])
        assert torch.equal(together[1][level], alone[1])


def test_a_position_that_is_not_finite_reads_inside_the_image_and_shows_in_the_weights() -> None:
    centres = torch.tensor([[float("nan"), 1.0], [float("inf"), 1.0]])
    numbers, weights = SquareTaps(2)(centres, torch.tensor([4, 3]))
    assert ((numbers >= 0) & (numbers < 12)).all()
    assert weights[:, 0].isnan().all(dim=(1, 2)).all()
    assert weights[:, 1].isfinite().all()


@pytest.mark.parametrize("size", [(5, 7), (4, 9), (12, 3), (1, 1), (5, 14)])
def test_resize_equals_torch_with_aligned_corners(size: tuple[int, int]) -> None:
    images = torch.randn(2, 3, 5, 7, dtype=torch.float64, requires_grad=True)
    expected = F.interpolate(images, size, mode="bilinear", align_corners=True)
    resized = resize_bilinear(images, size)
    torch.testing.assert_close(resized, expected, rtol=0, atol=1e-6)
    gradient = torch.randn_like(expected)
    found, wanted = (torch.autograd.grad(y, images, gradient)[0] for y in (resized, expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
