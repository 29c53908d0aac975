"""Mixtures: shares follow the weights, coverage is even, samples follow from the arguments."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.data.mixture import Mixture
from overt.data.rng import sample_rng
from overt.errors import DataError


class Numbers:
    def __init__(self, name, length):
        self.name, self.length = name, length

    def __len__(self):
        return self.length

    def sample(self, index, rng):
        assert 0 <= index < self.length
        return self.name, index, rng.random()


def epoch_of(mixture, epoch=0):
    return [mixture.sample(i, sample_rng(0, epoch, i)) for i in range(len(mixture))]


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.tuples(st.integers(1, 60), st.floats(0.2, 5.0)), min_size=1, max_size=4),
    epoch=st.integers(0, 5),
)
def test_shares_follow_the_weights(parts, epoch):
    lengths, weights = zip(*parts, strict=True)
    total = sum(lengths)
    exact = [total * weight / sum(weights) for weight in weights]
    sources = [Numbers(number, length) for number, length in enumerate(lengths)]
    if min(exact) < 1:
        return  # may be refused, tested below
    mixture = Mixture(sources, weights)
    assert len(mixture) == total
    counts = Counter(name for name, _, _ in epoch_of(mixture, epoch))
    assert sum(counts.values()) == total
    for number, share in enumerate(exact):
        assert abs(counts[number] - share) < 1


def test_equal_parts_give_each_sample_once():
    mixture = Mixture([Numbers("a", 30), Numbers("b", 10)], [3, 1])
    drawn = [(name, index) for name, index, _ in epoch_of(mixture)]
    assert sorted(drawn) == [("a", i) for i in range(30)] + [("b", i) for i in range(10)]


def test_small_and_large_sources_are_covered_evenly():
    mixture = Mixture([Numbers("large", 90), Numbers("small", 10)], [1, 1])
    seen = Counter()
    for epoch in range(40):
        drawn = Counter((name, index) for name, index, _ in epoch_of(mixture, epoch))
        assert all(drawn["small", index] == 5 for index in range(10))
        assert max(count for (name, _), count in drawn.items() if name == "large") <= 2
        seen += drawn
    large = [seen["large", index] for index in range(90)]
    assert min(large) > 8  # about 40 * 50 / 90 times each
    assert max(large) < 40


def test_sample_is_a_function_of_its_arguments():
    def make():
        return Mixture([Numbers("a", 7), Numbers("b", 20)], [2.0, 1.0])

    one, other = make(), make()
    forward = [one.sample(i, sample_rng(1, 2, i)) for i in range(27)]
    backward = [other.sample(i, sample_rng(1, 2, i)) for i in reversed(range(27))]
    assert forward == backward[::-1]
    assert forward != [one.sample(i, sample_rng(1, 3, i)) for i in range(27)]


def test_index_out_of_range():
    mixture = Mixture([Numbers("a", 3)], [1.0])
    for index in (-1, 3):
        with pytest.raises(IndexError):
            mixture.sample(index, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("lengths", "weights", "message"),
    [
        ([], [], "0 sources"),
        ([3], [1.0, 2.0], "1 sources with 2 weights"),
        ([3, 0], [1.0, 1.0], "source 1 of the mixture has no samples"),
        ([3, 3], [1.0, -1.0], r"source 1 .* weight -1\.0"),
        ([3, 3], [0.0, 1.0], r"source 0 .* weight 0\.0"),
        ([3, 3], [float("nan"), 1.0], "weight nan"),
        ([3, 3], [1e-6, 1.0], "source 0 .* less than one of the 6 samples"),
    ],
)
def test_impossible_mixtures(lengths, weights, message):
    with pytest.raises(DataError, match=message):
        Mixture([Numbers("x", length) for length in lengths], weights)
