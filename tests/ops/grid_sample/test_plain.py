"""overt/ops/grid_sample/plain.py against torch's own."""

from typing import Literal

import pytest
import torch
from torch.nn import functional as F

from overt.ops.grid_sample.api import grid_sample
from overt.ops.grid_sample.plain import grid_sample_plain

PADDINGS = ["zeros", "border"]


def case(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions inside, on pixels, across the border and far outside."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, 4, 5, 7, generator=generator, dtype=dtype)
    grid = torch.randn(3, 6, 8, 2, generator=generator, dtype=dtype) * 0.8
    grid[0, 0, 0] = torch.tensor([-1.0 + 1 / 7, 1.0 - 1 / 5])  # the middle of a corner's pixel
    grid[0, 0, 1] = torch.tensor([1e9, -1e9])
    return images.requires_grad_(), grid.requires_grad_()


@pytest.mark.parametrize("padding", PADDINGS)
def test_values_and_gradients_are_those_of_torch(padding: Literal["zeros", "border"]) -> None:
    images, grid = case()
    expected = F.grid_sample(images, grid, padding_mode=padding, align_corners=False)
    found = grid_sample_plain(images, grid, padding)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (images, grid), weights)
    torch.testing.assert_close(torch.autograd.grad(found, (images, grid), weights), wanted)


def test_the_gradient_is_that_of_its_own_values() -> None:
    images, grid = case()
    small = (grid.detach()[:1, :2, 2:4] * 0.9).requires_grad_()
    assert torch.autograd.gradcheck(grid_sample_plain, (images[:1, :2].detach(), small))


def test_images_may_be_half_precise() -> None:
    images, grid = case(torch.float32)
    half = grid_sample_plain(images.half(), grid)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), grid_sample_plain(images, grid), atol=5e-3, rtol=5e-3)


def test_on_the_cpu_it_is_torchs_own() -> None:
    images, grid = case()
    expected = F.grid_sample(images, grid, align_corners=False)
    assert torch.equal(grid_sample(images, grid), expected)
