"""overt/ops/point_search/plain.py: the definitions against brute force."""

import pytest
import torch
from point_clouds import KINDS, cloud
from torch import Tensor

from overt.ops.point_search import api as search
from overt.ops.point_search import plain


def furthest_by_hand(coords: Tensor, count: int) -> list[int]:
    """One cloud, one pick at a time, with the tie rule written out."""
    picks = [0]
    nearest = [1e38] * len(coords)
    for _ in range(count - 1):
        last = coords[picks[-1]]
        for number, point in enumerate(coords):
            step = point - last
            square = float(step[0] * step[0] + step[1] * step[1] + step[2] * step[2])
            nearest[number] = min(nearest[number], square)
        best = max(nearest)
        ties = [number for number, value in enumerate(nearest) if value == best]
        picks.append(min(ties, key=lambda number: (number % 512, number)))
    return picks


@pytest.mark.parametrize("kind", KINDS)
def test_furthest_points_are_those_of_the_slow_way(kind: str) -> None:
    coords = cloud(2, 24, kind)
    found = search.furthest_point_sample(coords, 12)
    assert found.dtype == torch.int32
    for row, points in zip(found, coords, strict=True):
        assert row.tolist() == furthest_by_hand(points, 12)


def test_equally_far_points_are_taken_by_their_number_modulo_512() -> None:
    coords = torch.zeros(1, 1100, 3)
    coords[0, [515, 600, 1027], 0] = 1.0  # modulo 512: 3, 88, 3
    assert search.furthest_point_sample(coords, 2).tolist() == [[0, 515]]


def test_more_picks_than_points_repeat_point_0() -> None:
    found = search.furthest_point_sample(cloud(1, 5, "random"), 9)[0].tolist()
    assert sorted(found[:5]) == [0, 1, 2, 3, 4]
    assert found[5:] == [0, 0, 0, 0]


def test_the_furthest_points_of_furthest_points_are_their_first_ones() -> None:
    coords = cloud(2, 300, "random")
    picks = search.furthest_point_sample(coords, 80).long()
    centers = coords.gather(1, picks[..., None].expand(-1, -1, 3))
    again = search.furthest_point_sample(centers, 20)
    assert torch.equal(again, torch.arange(20, dtype=torch.int32).expand(2, -1))


@pytest.mark.parametrize("kind", KINDS)
def test_ball_query_keeps_the_first_hits_by_index(kind: str) -> None:
    points = cloud(2, 60, kind)
    centers = points[:, :9] + 0.01
    centers[1, 4] = 100.0  # nothing is near
    index, hits = search.ball_query(centers, points, 0.9, 5)
    limit = plain.squared_radius(0.9)
    for b in range(2):
        for m in range(9):
            steps = centers[b, m] - points[b]
            squares = steps[:, 0] ** 2 + steps[:, 1] ** 2 + steps[:, 2] ** 2
            near = (squares < limit).nonzero().flatten().tolist()
            expected = (near + near[:1] * 5)[:5] if near else [0] * 5
            expected[len(near) :] = [near[0] if near else 0] * max(5 - len(near), 0)
            assert index[b, m].tolist() == expected
            assert int(hits[b, m]) == min(len(near), 5)


def test_a_point_exactly_at_the_radius_is_outside() -> None:
    points = torch.tensor([[[0.5, 0.0, 0.0], [0.25, 0.0, 0.0]]])
    index, hits = search.ball_query(torch.zeros(1, 1, 3), points, 0.5, 2)
    assert index.tolist() == [[[1, 1]]]
    assert hits.tolist() == [[1]]


def test_large_queries_are_cut_into_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    points, centers = cloud(2, 90, "random"), cloud(2, 31, "random", seed=1)
    whole = (*search.ball_query(centers, points, 1.0, 7), *search.three_nearest(points, centers))
    monkeypatch.setattr(plain, "_PLAIN_LIMIT", 200)
    parts = (*search.ball_query(centers, points, 1.0, 7), *search.three_nearest(points, centers))
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_three_nearest_centres_and_their_weights(kind: str) -> None:
    points, centers = cloud(2, 40, kind), cloud(2, 11, kind, seed=1)
    index, weight = search.three_nearest(points, centers)
    squares = (points[:, :, None] - centers[:, None]).square().sum(3)
    expected = squares.sort(dim=2, stable=True)
    assert torch.equal(index.long(), expected.indices[..., :3])
    inverse = 1 / expected.values[..., :3].clamp(min=1e-10).double()
    torch.testing.assert_close(weight, (inverse / inverse.sum(2, keepdim=True)).float())


def test_a_missing_centre_has_no_weight() -> None:
    points, centers = cloud(1, 6, "random"), cloud(1, 2, "random", seed=1)
    index, weight = search.three_nearest(points, centers)
    assert (index[..., 2] == 0).all()
    assert (weight[..., 2] < 1e-8).all()
    torch.testing.assert_close(weight.sum(2), torch.ones(1, 6))
