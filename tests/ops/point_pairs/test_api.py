"""overt/ops/point_pairs: packed neighbourhoods hold what the padded ones do."""

import pytest
import torch

from overt.ops.point_pairs.api import find_pairs
from overt.ops.point_search.api import ball_query


def clouds() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(2, 50, 3, generator=generator)
    centers = points[:, :8].clone()
    centers[1, 2] = 100.0  # an empty ball
    return centers, points


@pytest.mark.parametrize("capacity", [None, 500])
def test_padding_comes_back_from_the_weights(capacity: int | None) -> None:
    centers, points = clouds()
    pairs = find_pairs(centers, points, 0.9, 6, capacity)
    index, _ = ball_query(centers, points, 0.9, 6)
    assert len(pairs.points) == (capacity or int(pairs.num_pairs))
    for center in range(16):
        span = slice(int(pairs.starts[center]), int(pairs.starts[center + 1]))
        numbers = pairs.points[span] - center // 8 * 50
        padded = torch.repeat_interleave(numbers, pairs.weights[span].long())
        expected = index.view(16, 6)[center]
        assert sorted(padded.tolist()) == sorted(expected.tolist())
        assert (pairs.centers[span] == center).all()
    unused = pairs.points[int(pairs.num_pairs) :]
    assert not unused.any()
    assert not pairs.weights[int(pairs.num_pairs) :].any()
    assert (pairs.centers[int(pairs.num_pairs) :] == 16).all()


def test_too_small_a_room_is_counted() -> None:
    centers, points = clouds()
    whole = find_pairs(centers, points, 0.9, 6)
    cut = find_pairs(centers, points, 0.9, 6, capacity=10)
    assert torch.equal(cut.points, whole.points[:10])
    assert int(cut.num_pairs) == len(whole.points) > 10
    assert int(cut.starts.max()) == 10
