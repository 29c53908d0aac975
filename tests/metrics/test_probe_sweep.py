"""Linear probes of many rates at once."""

import math

import pytest
import torch

from overt.errors import DataError
from overt.metrics.probe_sweep import fit_linear, linear_sweep_accuracy
from overt.metrics.probes import ProbeSettings

SETTINGS = ProbeSettings(epochs=20, batch_size=32)


def two_classes(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of 8 numbers of which one tells the class, on a scale of its own."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    features = torch.randn(count, 8, generator=generator)
    features[:, 3] = (labels * 2.0 - 1 + 0.3 * features[:, 3]) * 1e-3 + 5
    return features, labels


def test_the_class_is_found_whatever_the_scale():
    result = linear_sweep_accuracy(*two_classes(200, 0), *two_classes(100, 1), SETTINGS)
    assert result["top1"] > 0.97
    assert result["lr"] in (0.01, 0.03, 0.1, 0.3, 1.0)


def test_labels_of_chance_are_chance():
    features, labels = two_classes(200, 0)
    shuffled = labels[torch.randperm(200, generator=torch.Generator().manual_seed(2))]
    result = linear_sweep_accuracy(features, shuffled, *two_classes(100, 1), SETTINGS)
    assert 0.2 < result["top1"] < 0.8


def test_a_head_of_a_sweep_is_the_head_trained_alone():
    """The heads of one pass do not see each other."""
    data = (*two_classes(100, 0), *two_classes(50, 1))
    alone = linear_sweep_accuracy(*data, SETTINGS, rates=(0.1,), decays=(1e-4,))
    several = linear_sweep_accuracy(*data, SETTINGS, rates=(0.0, 0.1), decays=(1e-4,))
    assert several["lr"] == 0.1
    assert several["top1"] == alone["top1"]


def test_the_gradient_is_that_of_the_cross_entropy():
    features, labels = two_classes(64, 0)
    probe = torch.nn.Linear(8, 2)
    torch.nn.init.zeros_(probe.weight)
    torch.nn.init.zeros_(probe.bias)
    loss = torch.nn.functional.cross_entropy(probe(features), labels)
    loss.backward()
    error = (probe(features).softmax(1) - torch.nn.functional.one_hot(labels, 2)) / 64
    assert torch.allclose(probe.weight.grad, (features.T @ error).T, atol=1e-6)


def test_views_of_a_judge_are_not_learned_from():
    """Labels of chance that all views share: a head that saw them would judge itself right."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 64, generator=generator)
    labels = torch.randint(0, 2, (60,), generator=generator)
    many, truths = features.repeat(3, 1), labels.repeat(3)
    head = fit_linear(many, truths, ProbeSettings(epochs=60, batch_size=32), views=3)
    right = (head.predict(features) == labels).float()
    assert 0.85 < right.mean() < 1  # what it learned, but not the tenth that judges


def test_what_cannot_be_scored():
    features, labels = two_classes(20, 0)
    with pytest.raises(DataError, match="no classes"):
        linear_sweep_accuracy(features, labels * 0 - 1, features, labels, SETTINGS)
    broken = features.clone()
    broken[0, 0] = math.nan
    assert math.isnan(linear_sweep_accuracy(broken, labels, features, labels, SETTINGS)["top1"])
