"""The order of shards: a permutation, nearly sequential, computed."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.data.streams.order import ShardOrder


@settings(max_examples=100, deadline=None)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    window=st.integers(1, 60),
    lanes=st.integers(1, 9),
    data=st.data(),
)
def test_an_order_is_a_permutation_whose_slices_agree(counts, window, lanes, data) -> None:
    total = sum(counts)
    order = ShardOrder(np.array(counts), epoch=2, seed=5, window=window, lanes=lanes)
    whole = order[:]
    assert len(order) == total
    assert sorted(whole) == list(range(total))
    first = data.draw(st.integers(0, total))
    last = data.draw(st.integers(first, total))
    other = ShardOrder(np.array(counts), epoch=2, seed=5, window=window, lanes=lanes)
    assert np.array_equal(other[first:last], whole[first:last])
    assert np.array_equal(other[first : last + total : 3], whole[first::3])


def test_orders_differ_between_epochs_and_seeds() -> None:
    counts = np.full(10, 10)
    orders = {
        tuple(ShardOrder(counts, epoch, seed, 16, 2)[:]) for epoch in range(4) for seed in range(4)
    }
    assert len(orders) == 16


def test_a_lane_reads_few_shards_at_a_time_and_a_batch_many() -> None:
    """40 shards of 100: each of 8 lanes reads 5 of them, one or two windows at a time."""
    order = ShardOrder(np.full(40, 100), epoch=0, seed=0, window=150, lanes=8)
    shards = order[:] // 100
    for lane in range(8):
        own = shards[lane::8]
        assert len(np.unique(own)) <= 9  # with those of the windows at both ends
        for first in range(0, len(own), 10):
            assert len(np.unique(own[first : first + 10])) <= 5  # of two windows
    assert len(np.unique(shards[:64])) >= 8
    # Within a lane, samples do not come in the order of the file.
    assert np.mean(np.diff(order[::8]) == 1) < 0.1


def test_windows_begin_elsewhere_in_each_epoch() -> None:
    phases = {ShardOrder(np.array([1000]), epoch, 0, 100, 1).phase for epoch in range(20)}
    assert len(phases) > 10


@pytest.mark.parametrize("window", [1, 1000])
def test_memory_grows_with_shards_not_with_samples(window: int) -> None:
    counts = np.full(1000, 10**9)  # 10^12 samples
    tracemalloc.start()
    try:
        order = ShardOrder(counts, 0, 0, window, 8)
        for first in range(0, 10**12, 10**11):
            assert len(order[first : first + 256]) == 256
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()
