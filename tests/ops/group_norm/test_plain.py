"""overt/ops/group_norm/plain.py: group normalization, the addition and the ReLU behind it."""

import torch
from torch.nn import functional as F

from overt.ops.group_norm.plain import group_norm_plain


def test_each_group_has_mean_zero_and_variance_one() -> None:
    x = torch.randn(2, 6, 9, 7, dtype=torch.float64) * 3 + 10
    one, zero = torch.ones(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    groups = group_norm_plain(x, one, zero, 3).view(2, 3, -1)
    assert groups.mean(2).abs().max() < 1e-9
    assert (groups.var(2, correction=0) - 1).abs().max() < 1e-5


def test_relu_comes_after_the_addition() -> None:
    x, residual = torch.randn(2, 2, 4, 6, 6).unbind(0)
    weight, bias = torch.randn(2, 4).unbind(0)
    normed = F.group_norm(x, 2, weight, bias, 1e-3)
    for relu, other, expected in (
        (False, None, normed),
        (True, None, F.relu(normed)),
        (False, residual, normed + residual),
        (True, residual, F.relu(normed + residual)),
    ):
        found = group_norm_plain(x, weight, bias, 2, 1e-3, relu, other)
        torch.testing.assert_close(found, expected, atol=0, rtol=0)


def test_the_dtype_is_kept() -> None:
    x = torch.randn(2, 4, 6, 6, dtype=torch.bfloat16)
    assert group_norm_plain(x, torch.ones(4), torch.zeros(4), 2).dtype == torch.bfloat16
    residual = torch.randn(2, 4, 6, 6)  # float32
    found = group_norm_plain(x, torch.ones(4), torch.zeros(4), 2, residual=residual)
    assert found.dtype == torch.bfloat16
