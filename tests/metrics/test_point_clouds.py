"""overt/metrics/point_clouds.py: Chamfer distance and F-score."""

import pytest
import torch

from overt.metrics.point_clouds import cloud_distances, cloud_scores


def test_distances_go_both_ways() -> None:
    one = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    other = torch.tensor([[0.0, 4.0, 0.0]])
    ours, theirs = cloud_distances(one, other)
    assert ours.tolist() == [4.0, 5.0]
    assert theirs.tolist() == [4.0]
    assert cloud_scores(one, other, 1.0)["chamfer"] == pytest.approx(4.25)


def test_equal_clouds_are_at_no_distance() -> None:
    cloud = torch.randn(100, 3, generator=torch.Generator().manual_seed(0)) + 1000
    scores = cloud_scores(cloud, cloud.flip(0), 0.1)
    assert scores == {"chamfer": 0.0, "f_score": 1.0}


def test_the_f_score_is_the_harmonic_mean_of_what_is_found() -> None:
    truth = torch.tensor([[0.0, 0.0, 0.0], [10.0, 0.0, 0.0]])
    found = torch.tensor([[0.1, 0.0, 0.0]])
    assert cloud_scores(found, truth, 0.5)["f_score"] == pytest.approx(2 / 3)
    assert cloud_scores(found, truth, 0.05)["f_score"] == 0.0
