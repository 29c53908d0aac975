"""overt/recipes/lbm/pyramid.py: resizing, reading points and tokens are torch's own."""

import pytest
import torch
from torch.nn import functional as F

from overt.recipes.lbm.pyramid import Resize, make_tokens, read_points


@pytest.mark.parametrize("size", [(8, 12), (16, 6), (24, 36)])
def test_resizing_is_torchs(size: tuple[int, int]) -> None:
    images = torch.randn(2, 8, 6, 3)
    wanted = F.interpolate(images.permute(0, 3, 1, 2), size, mode="bilinear", align_corners=False)
    found = Resize((8, 6), size)(images).permute(0, 3, 1, 2)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_reading_points_is_grid_sampling_with_a_repeated_border() -> None:
    features = torch.randn(3, 6, 8, 4)
    frames = torch.tensor([[0, 2, 1, 1]])
    cells = torch.tensor([[[3.3, 2.7], [-0.4, 5.4], [9.0, -3.0], [7.0, 5.0]]])
    found = read_points(features, frames, cells)
    for number in range(4):
        image = features[frames[0, number]].permute(2, 0, 1)[None]
        x, y = cells[0, number]
        grid = torch.stack([(2 * x + 1) / 8 - 1, (2 * y + 1) / 6 - 1]).view(1, 1, 1, 2)
        wanted = F.grid_sample(image, grid, padding_mode="border", align_corners=False)
        torch.testing.assert_close(found[0, number], wanted[0, :, 0, 0])


def test_tokens_are_means_of_cells() -> None:
    features = torch.arange(64.0).view(1, 8, 8, 1)
    tokens = make_tokens(features, 3)[0, :, 0]
    assert len(tokens) == 64 + 16 + 4
    assert tokens[64] == pytest.approx((0 + 1 + 8 + 9) / 4)
    assert tokens[80] == pytest.approx(features[0, :4, :4].mean())
