"""Views of a batch on the device are those that the host makes image by image."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from overt.data.images.transforms import ColorJitter, TrainingTransform, blur_weights, to_gray
from overt.data.images.views import make_views, resize_weights, view_row

IMAGES = 6


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """Smooth pictures of 40 x 36 pixels, (B, 3, H, W) uint8."""
    coarse = torch.rand(IMAGES, 3, 9, 9, generator=torch.Generator().manual_seed(0)) * 255
    return F.interpolate(coarse, (40, 36), mode="bicubic").clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("colors", [False, True])
def test_device_and_host_make_the_same_views(images, interpolation, colors):
    changes = {"jitter": ColorJitter.distortion(0.5), "gray": 0.2, "blur": 0.5} if colors else {}
    changes |= {"interpolation": interpolation, "jitter_probability": 0.8}
    transform = TrainingTransform((24, 32), (0.1, 1.0), flip=0.5, **changes)
    views = [transform.draw(40, 36, np.random.default_rng(number)) for number in range(IMAGES)]
    host = torch.stack([transform.apply(*pair) for pair in zip(images, views, strict=True)])
    rows = torch.from_numpy(np.stack([view_row(view) for view in views]))
    difference = (make_views(images, rows, transform).int() - host.int()).abs().float()
    assert len({view.flip for view in views}) == 2
    assert difference.mean() < 0.2  # resizing bytes rounds; colors carry that on
    assert difference.max() <= 4


def test_drawing_and_making_are_one_call(images):
    transform = TrainingTransform((16, 16), flip=0.5, jitter=ColorJitter.distortion(1.0), blur=1.0)
    view = transform.draw(40, 36, np.random.default_rng(3))
    assert (
        transform(images[0], np.random.default_rng(3)) == transform.apply(images[0], view)
    ).all()
    assert view.blur > 0


def test_a_crop_of_the_size_is_kept_as_it_is():
    weights = resize_weights(torch.tensor([3.0]), torch.tensor([5.0]), 12, 5, bicubic=True)
    assert torch.equal(weights[0], torch.eye(12)[3:8])


def test_gray_is_the_luminance_in_all_channels(images):
    gray = to_gray(images)
    assert (gray == gray[:, :1]).all()
    assert to_gray(torch.tensor([255, 0, 0], dtype=torch.uint8).view(3, 1, 1))[0] == 76


def test_blur_keeps_an_even_picture_and_no_blur_keeps_any():
    weights = blur_weights(torch.tensor([0.0, 1.5]), 9)
    assert torch.equal(weights[0], torch.eye(9))
    assert torch.allclose(weights[1].sum(1), torch.ones(9))
    assert weights[1][4, 4] < 0.5
