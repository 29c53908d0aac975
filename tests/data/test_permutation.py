"""Orders of an epoch: bijections without visible structure, stored or computed."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.data.permutation import (
    STORED_UP_TO,
    KeyedPermutation,
    epoch_order,
    order_of,
    random_stream,
)
from overt.data.rng import sample_rng
from overt.errors import DataError

LONG = STORED_UP_TO + 1


def keyed(length: int, seed: int = 0, epoch: int = 0) -> KeyedPermutation:
    """A computed permutation, of short lengths too."""
    return KeyedPermutation(length, random_stream(seed, epoch, 1))


def inverse(order: KeyedPermutation, numbers: np.ndarray) -> np.ndarray:
    """Undo the rounds one by one; outside of the range, go back again."""
    from overt.data.permutation import _hashed

    def undone(numbers: np.ndarray) -> np.ndarray:
        high, low = numbers >> order.low_bits, numbers & order.low_mask
        for key in order.keys.reshape(-1, 2)[::-1]:
            low = low ^ (_hashed(high + key[1]) & order.low_mask)
            high = high ^ (_hashed(low + key[0]) & order.high_mask)
        return high << order.low_bits | low

    numbers = undone(numbers.astype(np.uint64))
    while (outside := numbers >= order.length).any():
        numbers[outside] = undone(numbers[outside])
    return numbers


@given(seed=st.integers(0, 2**64), epoch=st.integers(0, 1000), length=st.integers(0, 300))
@settings(max_examples=30, deadline=None)
def test_an_order_is_a_permutation_and_a_function_of_seed_and_epoch(
    seed: int, epoch: int, length: int
) -> None:
    order = epoch_order(seed, epoch, length)
    assert sorted(order[:]) == list(range(length))
    assert np.array_equal(order[:], epoch_order(seed, epoch, length)[:])


def test_orders_differ_between_epochs_and_seeds_and_from_the_draws_of_samples() -> None:
    orders = [tuple(epoch_order(seed, epoch, 50)[:]) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9
    draws = [tuple(sample_rng(0, 0, index).permutation(50)) for index in range(3)]
    assert not set(draws) & set(orders)


@pytest.mark.parametrize("length", [1, 50, STORED_UP_TO])
def test_existing_runs_continue_with_the_very_same_samples(length: int) -> None:
    """What every checkpoint of a source up to 2^20 samples was made with."""
    stream = np.random.SeedSequence([7, 3], spawn_key=(1,))
    expected = np.random.default_rng(stream).permutation(length)
    assert np.array_equal(epoch_order(7, 3, length)[:], expected)


# --- computed orders ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "length", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 97, 1000, 1021, 1024, 1025, 65537, LONG]
)
def test_a_computed_order_is_a_bijection(length: int) -> None:
    for seed in range(3):
        assert np.array_equal(np.sort(keyed(length, seed)[:]), np.arange(length))


@pytest.mark.parametrize("length", [LONG, 2**21 - 1, 10**9 + 7, 10**12, 2**40, 2**63 - 1])
def test_every_number_of_a_long_order_has_one_position(length: int) -> None:
    order = keyed(length)
    for first in (0, length // 3, length - 1000):
        positions = np.arange(first, first + 1000, dtype=np.uint64)
        numbers = order[first : first + 1000]
        assert numbers.min() >= 0
        assert numbers.max() < length
        assert np.array_equal(inverse(order, numbers), positions)
        assert np.array_equal(order.at(inverse(order, positions)), positions)


def test_long_orders_differ_between_epochs_and_seeds() -> None:
    """Two random orders share a number at the same position by accident only."""
    orders = [
        epoch_order(seed, epoch, 10**12)[:1000] for seed in (0, 1, 2**70) for epoch in range(3)
    ]
    for number, order in enumerate(orders):
        assert not any((order == other).any() for other in orders[:number])


def chi_square(counts: np.ndarray) -> float:
    """How far counts are from even, in standard deviations from what is expected."""
    expected = counts.sum() / counts.size
    value = ((counts - expected) ** 2 / expected).sum()
    return float((value - (counts.size - 1)) / np.sqrt(2 * (counts.size - 1)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("length", [LONG, 1_500_007])
def test_a_computed_order_has_no_visible_structure(length: int, seed: int) -> None:
    order = epoch_order(seed, 0, length)[:]
    positions = np.arange(length)
    for lag in (0, 1, 2, 1024):  # differences of neighbors; 0: to the position itself
        other = positions if lag == 0 else np.roll(order, -lag)
        counts = np.bincount((other - order) % length * 64 // length, minlength=64)
        assert abs(chi_square(counts)) < 5
    # Low and high digits of a number say nothing about those of its position.
    for digit in (positions % 32, positions * 32 // length):
        for shown in (order % 32, order * 32 // length):
            assert abs(chi_square(np.bincount(digit * 32 + shown, minlength=1024))) < 5


@pytest.fixture(scope="module")
def whole() -> Any:
    return keyed(LONG).at(np.arange(LONG, dtype=np.uint64))


@given(
    cuts=st.lists(st.integers(0, LONG), min_size=1, max_size=6).map(sorted),
    step=st.integers(1, 5),
)
@settings(max_examples=20, deadline=None)
def test_slices_of_a_computed_order_agree(whole: Any, cuts: list[int], step: int) -> None:
    order = keyed(LONG)
    for first, last in zip([0, *cuts], [*cuts, LONG], strict=True):
        assert np.array_equal(order[first:last], whole[first:last])
    first = cuts[0]  # back again, with steps
    assert np.array_equal(order[first : first + 1000 : step], whole[first : first + 1000 : step])
    assert len(order[LONG : LONG + 5]) == 0
    with pytest.raises(IndexError, match="step -1"):
        order[::-1]


def test_an_order_of_10_to_the_12_samples_takes_next_to_no_memory() -> None:
    tracemalloc.start()
    try:
        order = epoch_order(0, 0, 10**12)
        for first in range(0, 10**12, 10**11):
            assert len(order[first : first + 256]) == 256
        assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
    finally:
        tracemalloc.stop()


# --- whose order ----------------------------------------------------------------------------------


class Numbers:
    def __len__(self) -> int:
        return 10

    def sample(self, index: int, rng: np.random.Generator) -> int:
        return index


class Backwards(Numbers):
    def __init__(self, length: int = 10) -> None:
        self.length = length

    def order(self, epoch: int, seed: int) -> range:
        return range(self.length - 1, -1, -1)


class Stream(Numbers):
    def sample_at(self, position: int, epoch: int, seed: int, rng: np.random.Generator) -> int:
        return position


class WithAnAttribute(Numbers):
    order = "by name"  # nothing that is called


def test_a_source_may_give_its_own_order() -> None:
    assert list(order_of(Backwards(), 0, 0)[:]) == list(range(9, -1, -1))
    assert list(order_of(Stream(), 0, 0)[2:5]) == [2, 3, 4]
    for source in (Numbers(), WithAnAttribute()):
        assert np.array_equal(order_of(source, 1, 2)[:], epoch_order(1, 2, 10)[:])


def test_an_order_of_another_length_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"Backwards\.order\(epoch=3\) has 9 positions, but .* 10 samples"
    ):
        order_of(Backwards(9), 0, 3)
