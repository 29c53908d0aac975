"""overt/ops/map_norm/plain.py: instance normalization, ReLU, and the sum behind them."""

import torch
from torch.nn import functional as F

from overt.ops.map_norm.plain import normalize_maps_plain


def test_each_map_has_mean_zero_and_variance_one() -> None:
    x = torch.randn(2, 5, 9, 7, dtype=torch.float64) * 3 + 10
    found = normalize_maps_plain(x, relu=False)
    torch.testing.assert_close(found, F.instance_norm(x))
    assert found.mean((2, 3)).abs().max() < 1e-9
    assert (found.var((2, 3), correction=0) - 1).abs().max() < 1e-5


def test_relu_comes_before_and_after_the_sum() -> None:
    x, residual = torch.randn(2, 2, 4, 6, 6).unbind(0)
    normed = F.instance_norm(x)
    torch.testing.assert_close(normalize_maps_plain(x), normed.relu())
    expected = (normed.relu() + residual).relu()
    torch.testing.assert_close(normalize_maps_plain(x, residual=residual), expected)
