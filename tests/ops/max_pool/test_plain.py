"""overt/ops/max_pool/plain.py against torch's own."""

import pytest
import torch
from torch.nn import functional as F

from overt.ops.max_pool.api import max_pool
from overt.ops.max_pool.plain import max_pool_plain


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 2, 7, 10), (2, 1, 9, 5), (1, 1, 1, 1)])
@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1)])
@pytest.mark.parametrize("kind", ["distinct", "ties"])
def test_values_and_gradients_are_those_of_torch(
    shape: tuple[int, ...], size: int, stride: int, padding: int, kind: str
) -> None:
    if min(shape[2:]) + 2 * padding < size:
        pytest.skip("no window fits")
    images = torch.randn(shape)
    # After a ReLU most windows have several zeros: the gradient belongs to the first.
    images = (images.relu() if kind == "ties" else images).requires_grad_()
    expected = F.max_pool2d(images, size, stride, padding)
    found = max_pool_plain(images, size, stride, padding)
    assert torch.equal(found, expected)
    weights = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad(expected, images, weights)
    (gradient,) = torch.autograd.grad(found, images, weights)
    torch.testing.assert_close(gradient, wanted)
    assert torch.equal(max_pool(images, size, stride, padding), expected)
