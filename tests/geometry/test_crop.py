"""Crops: bilinear, black outside, whole pixels kept; squares about masks stay in the frame."""

import numpy as np
import pytest
import torch

from overt.geometry.crop import crop_affine, crop_squares, mask_squares, warp, warp_nearest


def picture(height: int = 40, width: int = 50) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 256, (height, width, 3)).astype(np.uint8)


def test_a_crop_of_the_own_size_is_the_picture_itself() -> None:
    source = picture(40, 40)
    assert np.array_equal(warp(source, crop_affine((20, 20), 40, 0, 40), 40), source)
    depth = source[..., 0].astype(np.float32)
    assert np.array_equal(warp_nearest(depth, crop_affine((20, 20), 40, 0, 40), 40), depth)


@pytest.mark.parametrize("centre", [(20, 20), (19, 24), (3, 39), (47, -1), (70, 20), (-30, 80)])
@pytest.mark.parametrize("output", [24, 40, 64])
def test_moving_whole_pixels_mixes_none_and_gives_what_sampling_gives(
    centre: tuple[int, int], output: int
) -> None:
    affine = crop_affine(centre, output, 0, output)
    turned = affine + 1e-8  # is sampled, and rounded down
    moved, sampled = (warp(picture(), way, output).astype(int) for way in (affine, turned))
    assert np.abs(moved - sampled).max() <= 1


def test_outside_the_picture_it_is_black() -> None:
    crop = warp(picture(), crop_affine((25, 20), 100, 0, 100), 100)
    inside = crop[30:70, 25:75]
    assert np.array_equal(inside, picture())
    assert crop.astype(int).sum() == inside.astype(int).sum()


def test_a_half_pixel_is_the_mean_of_two() -> None:
    source = np.zeros((8, 8, 3), np.uint8)
    source[:, 4:] = 100
    crop = warp(source, crop_affine((4.5, 4), 8, 0, 8), 8)
    assert crop[4, 3, 0] == 50


@pytest.mark.parametrize("degrees", [90.0, -90.0, 180.0])
def test_quarter_turns_move_whole_pixels(degrees: float) -> None:
    source = picture(41, 41)
    crop = warp(source, crop_affine((20, 20), 41, degrees, 41), 41)
    turned = np.rot90(source, int(degrees // 90))
    # The centre goes to 20.5: half a pixel on, so that four neighbours are mixed.
    mixed = sum(
        np.roll(turned.astype(float), (down, across), (0, 1))
        for down in (0, 1)
        for across in (0, 1)
    )
    assert np.abs(crop[2:-2, 2:-2] - mixed[2:-2, 2:-2] / 4).max() <= 1


def test_squares_about_masks() -> None:
    masks = torch.zeros(3, 60, 60, dtype=torch.bool)
    masks[0, 20:41, 25:36] = True  # 20 high, 10 wide
    masks[1, 0:21, 0:21] = True  # spills over left and top
    corner, side = mask_squares(masks)
    assert side.tolist() == [25.0, 25.0, 1.25 * 59]
    assert corner[0].tolist() == [30 - 12.5, 30 - 12.5]
    assert corner[1].tolist() == [0.0, 0.0]


def test_the_corners_of_a_square_are_pixels_of_the_crop() -> None:
    image = torch.rand(1, 3, 30, 30)
    crop = crop_squares(image, torch.tensor([[5.0, 7.0]]), torch.tensor([10.0]), 11)
    torch.testing.assert_close(crop, image[:, :, 7:18, 5:16])
