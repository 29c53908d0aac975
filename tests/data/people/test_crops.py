"""Crops of people: draws come from the generator, and labels follow the picture."""

import numpy as np
import pytest
import torch
from PIL import Image

from overt.data.people.crops import (
    Augmentation,
    Changes,
    Crop,
    box_square,
    centred_side,
    cut,
    cut_batch,
    draw_change,
    draw_crop,
    keypoint_square,
    mirror_keypoints,
)
from overt.errors import DataError
from overt.geometry.crop import transform_points


def test_nothing_is_drawn_where_nothing_may_change() -> None:
    random = np.random.default_rng(0)
    before = random.bit_generator.state
    assert draw_crop((10, 20), 30, (50, 60), Augmentation(), random) == Crop((10, 20), 30)
    assert random.bit_generator.state == before


def test_the_centre_is_mirrored_with_the_picture() -> None:
    """A mark beside the centre stays in the crop, on its other side."""
    picture = np.zeros((40, 100, 3), np.uint8)
    picture[18:23, 83:86] = 255
    always = Augmentation(mirror=1.0)
    crop = draw_crop((80, 20), 20, (40, 100), always, np.random.default_rng(0))
    assert crop.mirrored
    assert crop.centre == (19, 20)
    plain, _ = cut(picture, Crop((80, 20), 20), 20)
    mirrored, _ = cut(picture, crop, 20)
    across = [int(np.nonzero(one[10, :, 0])[0].mean()) for one in (plain, mirrored)]
    assert across == [14, 6]


def test_keypoints_follow_the_mirrored_crop() -> None:
    random = np.random.default_rng(1)
    keypoints = np.concatenate([random.uniform(10, 30, (12, 2)), np.ones((12, 1))], axis=1)
    seen = mirror_keypoints(keypoints, 64)
    np.testing.assert_allclose(seen[0, 0], 63 - keypoints[1, 0])  # left and right change places
    np.testing.assert_allclose(mirror_keypoints(seen, 64), keypoints)


def test_draws_stay_within_their_limits() -> None:
    options = Augmentation(0.4, 0.5, 30, 0.8, 0.25, 0.25, 0.15, 0.3)
    crops = [
        draw_crop((50, 50), 10, (100, 100), options, np.random.default_rng(seed))
        for seed in range(300)
    ]
    sides = np.array([crop.side for crop in crops]) / 10
    assert sides.min() >= 0.75
    assert sides.max() <= 1.5
    degrees = np.abs([crop.degrees for crop in crops])
    assert degrees.max() <= 60
    assert 0.1 < np.mean(degrees == 0) < 0.3
    assert 0.4 < np.mean([crop.mirrored for crop in crops]) < 0.6
    gains = np.array([crop.gains for crop in crops])
    assert gains.min() >= 0.6
    assert gains.max() <= 1.4
    again = draw_crop((50, 50), 10, (100, 100), options, np.random.default_rng(7))
    assert again == crops[7]


def test_a_device_cuts_the_same_crops_at_once() -> None:
    options = Augmentation(0.4, 0.5, 30, 0.8, 0.25, 0.25, 0.15, 0.5)
    smooth = np.random.default_rng(0).integers(0, 256, (6, 8, 6, 3), dtype=np.uint8)
    pictures = [np.array(Image.fromarray(small).resize((40, 40))) for small in smooth]
    generators = [[np.random.default_rng(seed) for seed in range(6)] for _ in range(2)]
    crops = [draw_crop((22, 19.5), 31, (40, 40), options, rng) for rng in generators[0]]
    assert {crop.mirrored for crop in crops} == {True, False}
    made = [cut(picture, crop, 24) for picture, crop in zip(pictures, crops, strict=True)]
    changes = Changes.of([draw_change(options, rng) for rng in generators[1]])
    batch = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    centre, side = torch.tensor([[22, 19.5]]).expand(6, 2), torch.full((6,), 31.0)
    cropped, affine = cut_batch(batch, centre, side, 24, changes)
    truth = torch.from_numpy(np.stack([pixels for pixels, _ in made])).permute(0, 3, 1, 2)
    assert (cropped.int() - truth.int()).abs().max() <= 2
    assert (cropped.int() - truth.int()).abs().float().mean() < 0.1
    maps = torch.from_numpy(np.stack([matrix for _, matrix in made])).float()
    torch.testing.assert_close(affine, maps, atol=1e-4, rtol=1e-5)
    whole, _ = cut_batch(batch, torch.full((6, 2), 20.0), torch.full((6,), 40.0), 40)
    assert torch.equal(whole, batch)


def test_bright_colors_do_not_wrap_around() -> None:
    picture = np.full((8, 8, 3), 200, np.uint8)
    cropped, _ = cut(picture, Crop((4, 4), 8, gains=(1.4, 1.0, 0.5)), 8)
    assert cropped[4, 4].tolist() == [255, 200, 100]


def test_squares() -> None:
    assert box_square(np.array([10, 20, 30, 50, 1.0])) == ((25, 45), 50)
    with pytest.raises(DataError, match="0 x 5 pixels has no size"):
        box_square(np.array([1, 1, 0, 5.0]))
    keypoints = np.array([[0, 0, 1], [8, 4, 1], [100, 100, 0.0]])
    assert keypoint_square(keypoints) == ((4, 2), 10)
    with pytest.raises(DataError, match="neither a box nor a visible keypoint"):
        keypoint_square(np.zeros((3, 3)))
    coinciding = np.array([[7, 5, 1], [7, 5, 1], [100, 100, 0.0]])
    with pytest.raises(DataError, match=r"keypoints \(2\) are all at 7, 5"):
        keypoint_square(coinciding)
    assert keypoint_square(coinciding, least=6) == ((7, 5), 6)
    assert centred_side(np.array([[30, 20, 1.0]]), (100, 100)) == 60
    assert centred_side(None, (100, 80)) == 80
    assert centred_side(np.array([[50, 50, 1.0]]), (100, 100)) == 100 / 32  # at the very center


def test_the_map_of_a_crop_places_points() -> None:
    _, affine = cut(np.zeros((50, 50, 3), np.uint8), Crop((20, 30), 10, degrees=90), 40)
    np.testing.assert_allclose(transform_points(affine, np.array([20.0, 30.0])), [20, 20])
