"""What several methods share: scikit-learn's 1,797 digits, moved at random, and a small network."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from overt.data.images.digits import load_digits, split_thirds
from overt.metrics.features import knn_accuracy

SIDE = 16  # pixels of a moved digit


@cache
def digits(part: str) -> tuple[Tensor, NDArray[np.int64]]:
    """Return images (n, 8, 8) from 0 to 1 and labels (n,) of the part `train` or `test`."""
    images, labels = load_digits(8)
    chosen = split_thirds(len(images))[0 if part == "train" else 1]
    return torch.from_numpy(images[chosen].astype(np.float32) / 255), labels[chosen]


def moved(image: Tensor, rng: np.random.Generator, side: int = SIDE) -> Tensor:
    """Return a digit rotated, scaled, shifted and with noise, on a canvas (1, side, side)."""
    angle, zoom = rng.uniform(-0.4, 0.4), rng.uniform(1.1, 1.6)
    scale = side / (8 * zoom)
    shift = rng.uniform(-0.5, 0.5, 2) * (scale - 1)
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    theta = torch.from_numpy(np.c_[turn, shift][None].astype(np.float32))
    grid = F.affine_grid(theta, [1, 1, side, side], align_corners=False)
    canvas = F.grid_sample(image[None, None], grid, align_corners=False)[0]
    noise = rng.normal(0, 0.1, canvas.shape).astype(np.float32)
    return canvas + torch.from_numpy(noise)


@cache
def moved_digits(part: str) -> tuple[Tensor, Tensor]:
    """Return each digit of a part moved once, always the same way: (n, 1, SIDE, SIDE) and (n,)."""
    images, labels = digits(part)
    seed = 0 if part == "train" else 1
    views = [moved(image, np.random.default_rng([seed, n])) for n, image in enumerate(images)]
    return torch.stack(views), torch.from_numpy(labels)


def convolutions(
    width: int, strides: tuple[int, ...] = (2, 2, 2), first_kernel: int = 3
) -> list[nn.Module]:
    """Return layers that double the channels each; GroupNorm, since it keeps samples apart."""
    layers, inputs, kernel = list[nn.Module](), 1, first_kernel
    for number, stride in enumerate(strides):
        outputs = width * 2**number
        layers.append(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2))
        layers += [nn.GroupNorm(4, outputs), nn.ReLU()]
        inputs, kernel = outputs, 3
    return layers


def knn_scores(encode: nn.Module, build: Callable[[], nn.Module]) -> dict[str, float]:
    """Return k-NN accuracy on held-out digits: of features, of random weights, and of pixels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        fresh = build()
    return {
        "knn": _knn(encode, next(encode.parameters()).device),
        "random_weights": _knn(fresh, torch.device("cpu")),
        "pixels": _knn(nn.Identity(), torch.device("cpu")),
    }


def _knn(encode: nn.Module, device: torch.device) -> float:
    (bank, labels), (images, expected) = moved_digits("train"), moved_digits("test")
    features = [encode(part.to(device)).flatten(1) for part in (bank, images)]
    return knn_accuracy(features[0], labels, features[1], expected, k=10)
