"""overt/ops/correlation/taps.py: squares agree with points."""

import pytest
import torch

from overt.geometry.sample import bilinear_sample
from overt.ops.correlation.taps import SquareTaps, _between, mix_taps


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


@pytest.mark.parametrize("dim", [-3, -2])
def test_the_quick_mixture_is_the_sum_of_products(dim: int) -> None:
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(2, 4, 4, 3, generator=draw, requires_grad=True)
    fraction = torch.rand(2, 1, 1, 1, generator=draw)
    results = []
    for one in (fraction, fraction.clone().requires_grad_()):  # with a gradient: written out
        mixed = _between(values, one, dim)
        results.append([mixed, *torch.autograd.grad(mixed.square().sum(), values)])
    torch.testing.assert_close(*results)
