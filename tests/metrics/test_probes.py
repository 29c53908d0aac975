"""Probes learn what is linear, attend to what is hidden in one token, and are reproducible."""

import math
from dataclasses import replace

import pytest
import torch

from overt.errors import DataError
from overt.metrics.probes import (
    ATTENTIVE,
    LINEAR,
    AttentiveProbe,
    LinearProbe,
    attentive_probe_accuracy,
    linear_probe_accuracy,
)

QUICK = replace(LINEAR, epochs=20, batch_size=32)


def linear_task(count, seed):
    """Six classes by the largest of six of ten numbers."""
    features = torch.randn(count, 10, generator=torch.Generator().manual_seed(seed))
    return features, features[:, :6].argmax(dim=1)


def token_task(count, seed):
    """One of eight tokens, the one with a large first number, carries the class."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(count, 8, 16, generator=generator)
    labels = torch.arange(count) % 3
    place = torch.randint(0, 8, (count,), generator=generator)
    tokens[torch.arange(count), place] = 0
    tokens[torch.arange(count), place, 0] = 6
    tokens[torch.arange(count), place, 1 + labels] = 3
    return tokens, labels


def test_a_linear_probe_learns_a_linear_task():
    train, test = linear_task(400, 0), linear_task(200, 1)
    found = linear_probe_accuracy(*train, *test, QUICK)
    assert found["top1"] > 0.85
    assert found["top1"] < found["top5"] <= 1
    shuffled = train[1][torch.randperm(400, generator=torch.Generator().manual_seed(0))]
    assert linear_probe_accuracy(train[0], shuffled, *test, QUICK)["top1"] < 0.4


def test_the_seed_decides_everything_and_the_surroundings_nothing():
    train, test = linear_task(100, 0), linear_task(100, 1)
    few = replace(QUICK, epochs=2)
    alone = linear_probe_accuracy(*train, *test, few)
    torch.manual_seed(5)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        inside = tuple(part.clone() for part in train)
        assert linear_probe_accuracy(*inside, *test, few) == alone
    with torch.no_grad():
        assert linear_probe_accuracy(*train, *test, few) == alone
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    one, same, other = (LinearProbe(4, 3, generator).head.weight for generator in generators)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_standardised_features_may_be_of_any_scale():
    train, test = linear_task(400, 0), linear_task(200, 1)
    scale = torch.logspace(-3, 3, 10)
    wild = (train[0] * scale + 100, train[1], test[0] * scale + 100, test[1])
    steady = replace(QUICK, standardize=True)
    assert linear_probe_accuracy(*wild, steady)["top1"] > 0.85
    assert linear_probe_accuracy(*wild, QUICK)["top1"] < 0.6


def test_a_class_that_was_not_trained_is_never_right():
    train, (test, labels) = linear_task(200, 0), linear_task(50, 1)
    assert linear_probe_accuracy(*train, test, labels + 6, QUICK) == {"top1": 0.0, "top5": 0.0}


def test_an_attentive_probe_finds_the_token_that_tells():
    train, test = token_task(300, 0), token_task(90, 1)
    settings = replace(ATTENTIVE, lr=1e-2, batch_size=32, epochs=20)
    attentive = attentive_probe_accuracy(*train, *test, heads=4, settings=settings)
    pooled = linear_probe_accuracy(train[0].mean(1), train[1], test[0].mean(1), test[1], QUICK)
    assert attentive["top1"] > 0.95
    assert pooled["top1"] < attentive["top1"]


def test_an_attentive_probe_does_not_see_the_order_of_tokens():
    probe = AttentiveProbe(16, 3, heads=2, generator=torch.Generator().manual_seed(0))
    tokens, _ = token_task(5, 0)
    assert torch.allclose(probe(tokens), probe(tokens.flip(1)), atol=1e-6)


def test_refusals():
    features, labels = linear_task(20, 0)
    with pytest.raises(DataError, match="needs labeled images"):
        linear_probe_accuracy(features, torch.full_like(labels, -1), features, labels)
    with pytest.raises(DataError, match="3 heads for features of 16"):
        AttentiveProbe(16, 3, heads=3)


def test_a_probe_that_diverges_has_no_score():
    """NaN is above no number: every class would count as right."""
    train, test = token_task(60, 0), token_task(60, 1)
    far = replace(ATTENTIVE, lr=1e20, epochs=3, batch_size=32)
    assert all(map(math.isnan, attentive_probe_accuracy(*train, *test, 2, far).values()))
    train, test = linear_task(60, 0), linear_task(60, 1)
    far = replace(QUICK, lr=1e20, weight_decay=1.0)
    assert all(map(math.isnan, linear_probe_accuracy(*train, *test, far).values()))


def test_broken_features_have_no_score():
    features, labels = linear_task(20, 0)
    found = linear_probe_accuracy(features / 0, labels, features, labels)
    assert math.isnan(found["top1"])
    assert math.isnan(found["top5"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("standardize", [False, True])
def test_tokens_on_the_host_train_a_probe_on_the_gpu(standardize):
    train, test = token_task(300, 0), token_task(150, 1)
    few = replace(ATTENTIVE, epochs=10, batch_size=32, standardize=standardize)
    found = attentive_probe_accuracy(*train, *test, 4, few, torch.device("cuda"))
    expected = attentive_probe_accuracy(*train, *test, 4, few)
    assert found["top1"] == pytest.approx(expected["top1"], abs=0.05)
