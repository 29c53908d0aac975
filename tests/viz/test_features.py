"""PCA pictures: the same features have the same colors, and nothing stops them."""

import pytest
import torch

from overt.viz.features import attention_picture, pca_picture


def two_halves():
    """Two images of 4 x 6 patches, left half and right half of two kinds, with some noise."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randn(2, 10, generator=generator) * 5
    half = (torch.arange(24) % 6 >= 3).long()
    noise = torch.randn(2, 24, 10, generator=generator)
    return kinds[half] + 0.1 * noise


def test_like_features_have_like_colors():
    picture = pca_picture(two_halves(), (4, 6), scale=3)
    assert picture.shape == (2, 3, 12, 18)
    assert picture.dtype == torch.uint8
    main = picture[:, 0].int()  # the first direction: between the two halves
    left, right = main[..., :9], main[..., 9:]
    assert (left.float().mean() - right.float().mean()).abs() > 200
    assert max(left.max() - left.min(), right.max() - right.min()) < 30
    assert torch.equal(
        picture, picture[..., ::3, ::3].repeat_interleave(3, 2).repeat_interleave(3, 3)
    )


def test_scale_and_offset_of_features_do_not_matter():
    features = two_halves()
    one, other = pca_picture(features, (4, 6)), pca_picture(features * 7 + 3, (4, 6))
    assert (one.int() - other.int()).abs().max() <= 1


@pytest.mark.parametrize("features", [torch.ones(1, 6, 8), torch.full((1, 6, 8), torch.nan)])
def test_features_without_a_difference_are_gray(features):
    assert pca_picture(features, (2, 3)).unique().tolist() == [128]


@pytest.mark.parametrize("dimension", [1, 2])
def test_fewer_dimensions_than_colors(dimension):
    assert pca_picture(torch.randn(1, 6, dimension), (2, 3)).shape == (1, 3, 2, 3)


def test_attention_is_white_where_a_head_looks():
    maps = torch.tensor([[[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.0, 0.0]]])  # one image, two heads
    picture = attention_picture(maps, (2, 2), scale=2)
    assert picture.shape == (1, 3, 4, 8)
    assert picture[0, 0, ::2, ::2].tolist() == [[64, 128, 255, 255], [191, 255, 0, 0]]
