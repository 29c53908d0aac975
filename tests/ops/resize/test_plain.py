"""overt/ops/resize/plain.py against torch's own."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from overt.ops.resize.api import resize
from overt.ops.resize.plain import resize_plain

WAYS: list[dict[str, Any]] = [
    {"mode": "bilinear", "align_corners": False, "antialias": False},
    {"mode": "bilinear", "align_corners": True, "antialias": False},
    {"mode": "bicubic", "align_corners": False, "antialias": False},
    {"mode": "bicubic", "align_corners": False, "antialias": True},
]


def compare(images: Tensor, found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    weights = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad(expected, images, weights)
    (gradient,) = torch.autograd.grad(found, images, weights)
    torch.testing.assert_close(gradient, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("size", [(5, 7), (9, 4), (1, 20), (10, 14)])
def test_values_and_gradients_are_those_of_torch(
    way: dict[str, Any], size: tuple[int, int]
) -> None:
    images = torch.randn(2, 3, 5, 7, requires_grad=True)
    expected = F.interpolate(images, size, **way)
    compare(images, resize_plain(images, size, None, **way), expected)
    assert torch.equal(resize(images, size, **way), expected)


@pytest.mark.parametrize("way", WAYS[::2], ids=str)
def test_a_factor_that_is_not_the_ratio_of_the_sizes(way: dict[str, Any]) -> None:
    """DINOv2 stretches its table by (new + 0.1) / old."""
    images = torch.randn(1, 4, 6, 6, requires_grad=True)
    factors = (8.1 / 6, 5.1 / 6)
    expected = F.interpolate(images, scale_factor=factors, **way)
    assert expected.shape[2:] == (8, 5)
    compare(images, resize_plain(images, None, factors, **way), expected)
    assert torch.equal(resize(images, scale_factor=factors, **way), expected)


@pytest.mark.parametrize("length", [3, 8, 20])
def test_sequences(length: int) -> None:
    way = {"mode": "linear", "align_corners": False, "antialias": False}
    sequences = torch.randn(2, 5, 8, requires_grad=True)
    expected = F.interpolate(sequences, length, mode="linear", align_corners=False)
    compare(sequences, resize_plain(sequences, [length], None, **way), expected)
    assert torch.equal(resize(sequences, [length], mode="linear"), expected)


def test_autocast_takes_no_digits() -> None:
    images = torch.randn(1, 1, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        found = resize_plain(images, (9, 9), None, **WAYS[0])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, F.interpolate(images, (9, 9), mode="bilinear"))
