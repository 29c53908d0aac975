"""Crops, resizing, flips and colors: against Pillow, and by what must hold for any image."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from overt.data.images.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    ColorJitter,
    Crop,
    EvaluationTransform,
    Normalize,
    TrainingTransform,
    crop_resize,
    draw_crop,
    draw_jitter,
    middle_crop,
)

SCALE, RATIO = (0.3, 1.0), (3 / 4, 4 / 3)


def image(height, width, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(2, 0, 1)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(20, 31), (90, 70), (40, 60)])
def test_resizing_is_pillows_up_to_rounding(mode, size):
    picture = image(50, 80)
    crop = Crop(3, 10, 40, 60)
    ours = crop_resize(picture, crop, size, mode).permute(1, 2, 0).numpy()
    pillow = Image.fromarray(np.ascontiguousarray(picture.permute(1, 2, 0).numpy()))
    cut = pillow.crop((10, 3, 70, 43))
    theirs = np.asarray(cut.resize(size[::-1], getattr(Image.Resampling, mode.upper())))
    assert abs(ours.astype(int) - theirs).max() <= 1
    planar = crop_resize(picture.contiguous(), crop, size, mode)  # the other order in memory
    assert abs(planar.permute(1, 2, 0).numpy().astype(int) - ours).max() <= 1


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_a_crop_lies_within_the_image(height, width, seed):
    crop = draw_crop(height, width, SCALE, RATIO, np.random.default_rng(seed))
    assert crop.height >= 1
    assert crop.width >= 1
    assert 0 <= crop.top <= height - crop.height
    assert 0 <= crop.left <= width - crop.width


def test_area_and_shape_of_crops_are_as_asked():
    rng = np.random.default_rng(0)
    # Small parts of a large image: no draw is turned down, so the draws show unchanged.
    crops = [draw_crop(1000, 1500, (0.1, 0.3), RATIO, rng) for _ in range(4000)]
    areas = np.array([crop.height * crop.width for crop in crops]) / 1.5e6
    shapes = np.log([crop.width / crop.height for crop in crops])
    assert 0.099 < areas.min() < 0.102
    assert 0.298 < areas.max() < 0.301
    assert areas.mean() == pytest.approx(0.2, abs=0.003)
    assert shapes.mean() == pytest.approx(0, abs=0.01)  # as often wide as tall
    assert abs(shapes).max() == pytest.approx(math.log(4 / 3), abs=0.01)
    lefts = np.array([crop.left / (1500 - crop.width) for crop in crops])
    assert np.histogram(lefts, bins=4, range=(0, 1))[0].min() > 900


def test_every_place_can_be_reached():
    rng = np.random.default_rng(0)
    crops = [draw_crop(4, 4, (0.2, 0.3), (1.0, 1.0), rng) for _ in range(200)]
    assert {(crop.top, crop.left) for crop in crops} == {(y, x) for y in range(3) for x in range(3)}


def test_an_image_into_which_no_crop_fits_gives_its_middle():
    rng = np.random.default_rng(0)
    assert draw_crop(10, 1000, (0.9, 1.0), RATIO, rng) == Crop(0, 493, 10, 13)
    assert draw_crop(1000, 10, (0.9, 1.0), RATIO, rng) == Crop(493, 0, 13, 10)
    assert middle_crop(1, 1, 5.0) == Crop(0, 0, 1, 1)
    assert middle_crop(30, 50, 1.0) == Crop(0, 10, 30, 30)


TRAINING = TrainingTransform(
    (24, 32), (0.5, 1.0), interpolation="bicubic", flip=0.5, jitter=ColorJitter.of_strength(1.0)
)


@pytest.mark.parametrize("shape", [(40, 50), (1, 1), (1, 700), (300, 2), (24, 32)])
def test_any_image_comes_out_in_the_size_asked_for(shape):
    for result in (
        TRAINING(image(*shape), np.random.default_rng(0)),
        EvaluationTransform((24, 32))(image(*shape)),
    ):
        assert result.shape == (3, 24, 32)
        assert result.dtype == torch.uint8
        assert result.is_contiguous()


def test_the_generator_decides_everything():
    picture = image(40, 50)
    before = picture.clone()
    once, again, other = (TRAINING(picture, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert torch.equal(picture, before)


def test_flip():
    whole = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0)}
    picture = image(16, 16)
    mirrored = TrainingTransform((16, 16), **whole, flip=1.0)(picture, np.random.default_rng(0))
    assert torch.equal(mirrored, picture.flip(2))
    half = TrainingTransform((16, 16), **whole, flip=0.5)
    flips = sum(
        torch.equal(half(picture, np.random.default_rng(seed)), mirrored) for seed in range(400)
    )
    assert 160 < flips < 240


def test_jitter_is_drawn_within_its_reach():
    assert ColorJitter.of_strength(0) is None
    reach = ColorJitter.of_strength(0.5)
    drawn = [draw_jitter(reach, np.random.default_rng(seed)) for seed in range(500)]
    assert len({jitter.order for jitter in drawn}) == 24
    for name, low, high in (
        ("brightness", 0.8, 1.2), ("contrast", 0.8, 1.2), ("saturation", 0.9, 1.1),
        ("hue", -0.05, 0.05),
    ):  # fmt: skip
        values = np.array([getattr(jitter, name) for jitter in drawn])
        assert low <= values.min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < values.max() <= high


def test_evaluation_is_resize_and_middle():
    """On a smooth image the usual two steps of Pillow give nearly the same."""
    y, x = np.mgrid[0:90, 0:140]
    pixels = np.stack([x, y + 50, (x + y) / 2], axis=2).astype(np.uint8)
    ours = EvaluationTransform((48, 48))(torch.from_numpy(pixels).permute(2, 0, 1))
    resized = Image.fromarray(pixels).resize((int(54 * 140 / 90), 54), Image.Resampling.BICUBIC)
    theirs = np.asarray(resized)[3:51, 18:66]
    assert abs(ours.permute(1, 2, 0).numpy().astype(int) - theirs).max() <= 2


def test_normalize():
    images = image(6, 5)[None]
    expected = (images / 255 - torch.tensor(IMAGENET_MEAN).view(3, 1, 1)) / torch.tensor(
        IMAGENET_STD
    ).view(3, 1, 1)
    normalize = Normalize()
    assert torch.allclose(normalize(images), expected, atol=1e-6)
    assert normalize.state_dict() == {}
    one = Normalize([0.5], [0.25])(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    assert one.flatten().tolist() == [-2.0, 2.0]


def test_a_mask_is_cut_as_its_image_is() -> None:
    """An image of four flat quarters and its mask agree away from the borders."""
    mask = torch.zeros(37, 53, dtype=torch.int64)
    mask[18:], mask[:, 26:] = mask[18:] + 1, mask[:, 26:] + 2
    image = (mask * 80).to(torch.uint8).expand(3, -1, -1).contiguous()
    transform = EvaluationTransform((16, 24), margin=1.25)
    pixels, classes = transform(image)[0].int(), transform.of_mask(mask)
    assert classes.shape == (16, 24)
    agree = (pixels - 80 * classes).abs() <= 20
    assert agree.float().mean() > 0.85
    whole = EvaluationTransform((37, 53), margin=1.0).of_mask(mask)
    assert torch.equal(whole, mask)
