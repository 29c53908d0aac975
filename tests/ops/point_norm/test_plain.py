"""overt/ops/point_norm/plain.py: packed norms equal padded ones."""

import torch
import torch.nn.functional as F

from overt.ops.point_norm.api import norm_swish, norm_swish_max, norm_swish_pairs
from overt.ops.point_norm.plain import EPS
from overt.ops.point_pairs.api import find_pairs, pack_pairs
from overt.ops.point_search.api import ball_query

SLOTS, CENTERS, POINTS = 12, 15, 60


def test_packed_values_and_maxima_are_those_with_the_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(2, POINTS, 3, generator=generator)
    centers = points[:, :CENTERS].clone()
    centers[0, 3] = 50.0
    features = torch.randn(2, POINTS, 16, generator=generator, requires_grad=True)
    scale, shift = torch.randn(2, 16, generator=torch.Generator().manual_seed(1))
    index, _ = ball_query(centers, points, 1.0, SLOTS)
    cloud = torch.arange(2)[:, None, None]
    padded = features[cloud, index.long()].permute(0, 3, 1, 2)  # (B, C, M, U)
    values = F.silu(F.group_norm(padded, 8, scale, shift, EPS))
    expected = values.amax(3).transpose(1, 2).reshape(2 * CENTERS, 16)

    pairs = find_pairs(centers, points, 1.0, SLOTS)
    rows = features.reshape(-1, 16)[pairs.points.long()]
    found = norm_swish_max(rows, scale, shift, 8, pairs)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    gradient = torch.randn(expected.shape, generator=generator)
    one = torch.autograd.grad(found, features, gradient)[0]
    other = torch.autograd.grad(expected, features, gradient)[0]
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_many_equal_rows_keep_their_digits() -> None:
    """A running float32 sum over a million slots would be off by more than this."""
    index = torch.arange(40).view(1, 40, 1).expand(-1, -1, 4096).int()
    hits = torch.ones(1, 40, dtype=torch.int32)
    pairs = pack_pairs(index, hits, 40)
    rows = torch.randn(40, 16, generator=torch.Generator().manual_seed(0)) + 100
    found = norm_swish_pairs(rows, torch.ones(16), torch.zeros(16), 8, pairs)
    exact = F.silu(F.group_norm(rows.double().T[None], 8, eps=EPS))[0].T
    torch.testing.assert_close(found.double(), exact, atol=2e-5, rtol=1e-4)


def test_a_constant_is_that_of_the_bias_before() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 30, 16, generator=generator)
    scale, shift, bias = torch.randn(3, 16, generator=generator)
    by_cloud = torch.randn(2, 16, generator=generator)
    for constant, expected in ((bias, rows + bias), (by_cloud, rows + by_cloud[:, None])):
        found = norm_swish(rows, scale, shift, 8, constant)
        torch.testing.assert_close(found, norm_swish(expected, scale, shift, 8))
