"""The generator of a sample: the same for the same sample, another for any other."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.data.rng import choose, cumulative, sample_rng, sample_rngs, uniform

KEYS = st.tuples(
    st.integers(0, 2**40), st.integers(0, 2**20), st.integers(0, 2**31)
)  # seed, epoch, index


@settings(max_examples=50, deadline=None)
@given(KEYS)
def test_same_key_gives_the_same_numbers(key):
    assert (sample_rng(*key).random(8) == sample_rng(*key).random(8)).all()


@settings(max_examples=50, deadline=None)
@given(KEYS, KEYS)
def test_other_keys_give_other_numbers(one, other):
    same = (sample_rng(*one).random(8) == sample_rng(*other).random(8)).all()
    assert same == (one == other)


def test_a_large_seed_does_not_run_into_the_epoch():
    # Written one after the other, the 32-bit words of these keys would be the same.
    one, other = sample_rng(5 + 2**32, 0, 0), sample_rng(5, 1, 0)
    assert one.random() != other.random()


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**200),
    st.integers(0, 2**40),
    st.lists(st.integers(0, 2**33) | st.integers(0, 2**10), min_size=1, max_size=5),
)
def test_many_at_once_have_the_streams_of_each(seed, epoch, indices):
    for index, one in zip(indices, sample_rngs(seed, epoch, indices), strict=True):
        assert one.bit_generator.state == sample_rng(seed, epoch, index).bit_generator.state


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**40),
    st.lists(st.floats(0.01, 1), min_size=1, max_size=6),
    st.floats(-30, 30),
    st.floats(-30, 30),
)
def test_shortcuts_return_the_numbers_of_numpy(seed, weights, low, width):
    probabilities = np.array(weights) / np.sum(weights)
    ours, theirs = np.random.default_rng(seed), np.random.default_rng(seed)
    sums, count = cumulative(probabilities.tolist()), len(weights)
    for size in (None, 5):
        expected = theirs.choice(count, size, p=probabilities)
        np.testing.assert_array_equal(choose(ours, sums, size), expected)
    high = low + abs(width)
    # Elsewhere numpy may be compiled to multiply and add with a single rounding.
    np.testing.assert_allclose(uniform(ours, low, high), theirs.uniform(low, high), rtol=1e-14)
    assert ours.bit_generator.state == theirs.bit_generator.state
