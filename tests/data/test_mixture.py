"""Mixtures: counts follow the weights, coverage is even, samples follow from the arguments."""

import pickle
import tracemalloc
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.config.batch import BatchPlan
from overt.data import mixture as mixture_module
from overt.data.mixture import InterleavedMixture, Mixture
from overt.data.permutation import order_of
from overt.data.rng import sample_rng
from overt.distributed import World
from overt.engine.loader import StepLoader
from overt.engine.order import Position
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
def test_counts_follow_the_weights(parts, epoch):
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
@pytest.mark.parametrize("kind", [Mixture, InterleavedMixture])
def test_impossible_mixtures(lengths, weights, message, kind):
    with pytest.raises(DataError, match=message):
        kind([Numbers("x", length) for length in lengths], weights)


# --- interleaved ----------------------------------------------------------------------------------


class Ordered(Numbers):
    """Gives its samples in file order."""

    def order(self, epoch, seed):
        return range(self.length)


class Stream(Numbers):
    """Shows what it is asked for."""

    def sample_at(self, position, epoch, seed, rng):
        assert 0 <= position < self.length
        return self.name, position, rng.random(), epoch, seed


class Sequential(Stream):
    def check_split(self, batch_size, world_size, num_workers):
        pass


def interleaved(mixture, epoch=0, seed=0, positions=None):
    positions = range(len(mixture)) if positions is None else positions
    return [mixture.sample_at(p, epoch, seed, sample_rng(seed, epoch, p)) for p in positions]


PARTS = st.lists(st.tuples(st.integers(1, 60), st.floats(0.2, 5.0)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(parts=PARTS, samples=st.integers(60, 500), epochs=st.integers(1, 3))
def test_every_epoch_holds_each_source_by_its_weight(parts, samples, epochs):
    """To the sample, largest remainder first, and without repetition within a pass."""
    lengths, weights = zip(*parts, strict=True)
    sources = [Numbers(number, length) for number, length in enumerate(lengths)]
    mixture = InterleavedMixture(sources, weights, samples)
    taken = {number: [] for number in range(len(lengths))}
    for epoch in range(epochs):
        names = Counter()
        for name, index, _ in interleaved(mixture, epoch):
            names[name] += 1
            taken[name].append(index)
        assert sum(names.values()) == len(mixture) == samples
        for number, weight in enumerate(weights):
            assert names[number] == mixture.counts[number]
            assert abs(names[number] - samples * weight / sum(weights)) < 1
    for number, length in enumerate(lengths):
        for first in range(0, len(taken[number]), length):  # every pass over the source
            once = taken[number][first : first + length]
            assert len(set(once)) == len(once)


def test_largest_remainders_are_those_of_the_weights_as_written():
    """15 samples by 0.7, 0.1, 0.1, 0.1: four ties at one half, though no float is exact."""
    sources = [Numbers(number, 50) for number in range(4)]
    assert InterleavedMixture(sources, [0.7, 0.1, 0.1, 0.1], 15).counts == [11, 2, 1, 1]
    assert InterleavedMixture(sources[:3], [1, 1, np.float32(1)], 10).counts == [4, 3, 3]
    large = InterleavedMixture([Numbers(0, 10**12), Numbers(1, 3)], [3.0, 1.0], 10**15 + 2)
    assert large.counts == [75 * 10**13 + 2, 25 * 10**13]  # ties go to the first


def test_sources_are_spread_evenly_and_not_regularly():
    mixture = InterleavedMixture([Numbers(0, 9000), Numbers(1, 3000)], [3.0, 1.0])
    names = np.array([name for name, *_ in interleaved(mixture)])
    block = mixture_module.PATTERN_LENGTH
    for first in range(0, len(names), block):
        count = names[first : first + block].sum()
        assert abs(count - len(names[first : first + block]) / 4) <= 1
    # With a regular pattern one rank of four would get all samples of the second source.
    assert all(400 < names[rank::4].sum() < 1100 for rank in range(4))


def test_passes_continue_over_epochs_and_change_their_order():
    source = Numbers("a", 10)
    mixture = InterleavedMixture([source, Numbers("b", 10)], [1.0, 1.0], samples=12)
    for name in "ab":
        indices = [
            index for epoch in range(5) for each, index, _ in interleaved(mixture, epoch)
            if each == name
        ]  # fmt: skip
        passes = [indices[first : first + 10] for first in (0, 10, 20)]
        assert all(sorted(each) == list(range(10)) for each in passes)
        assert len(set(map(tuple, passes))) == 3
    # Sources of one length do not share their order.
    first, second = ([i for n, i, _ in interleaved(mixture, 0) if n == name] for name in "ab")
    assert first != second


def test_sources_keep_their_own_order_and_streams_their_positions():
    mixture = InterleavedMixture([Ordered("files", 6), Stream("stream", 4)], [1.0, 1.0], 12)
    samples = [sample for epoch in range(2) for sample in interleaved(mixture, epoch, seed=5)]
    assert [index for name, index, *_ in samples if name == "files"] == [*range(6), *range(6)]
    asked = [sample for sample in samples if sample[0] == "stream"]
    assert [(sample[3], sample[1]) for sample in asked] == [divmod(n, 4) for n in range(12)]
    assert len({sample[4] for sample in asked}) == 1  # one seed, its own


def test_a_mixture_of_mixtures():
    inner = InterleavedMixture([Numbers("a", 5), Numbers("b", 5)], [1.0, 1.0])
    mixture = InterleavedMixture([inner, Numbers("c", 10)], [1.0, 1.0])
    names = Counter(name for name, *_ in interleaved(mixture))
    assert names == {"a": 5, "b": 5, "c": 10}


def test_a_repeated_sample_of_an_epoch_is_augmented_differently():
    mixture = InterleavedMixture([Numbers("a", 2)], [1.0], samples=8)
    assert len({draw for _, _, draw in interleaved(mixture)}) == 8


def test_samples_follow_from_position_epoch_and_seed():
    def make():
        return InterleavedMixture([Numbers("a", 70), Numbers("b", 2000)], [2.0, 1.0])

    positions = range(0, 2070, 7)
    forward = interleaved(make(), 2, 1, positions)
    backward = interleaved(make(), 2, 1, reversed(positions))
    assert forward == backward[::-1]
    assert forward != interleaved(make(), 3, 1, positions)
    assert forward != interleaved(make(), 2, 2, positions)
    used = make()
    interleaved(used, 2, 1, positions)
    assert interleaved(pickle.loads(pickle.dumps(used)), 2, 1, positions) == forward
    assert len(pickle.dumps(used)) < 10_000  # orders stay in their process


def loader(mixture, batch, accumulation=1, size=1, rank=0, workers=0):
    plan, world = BatchPlan(batch, accumulation, size), World(rank, size, rank, torch.device("cpu"))
    return StepLoader(mixture, list, plan, world, seed=4, drop_last=False, num_workers=workers)


def steps_of(loader, steps):
    batches = [loader.next_step() for _ in range(steps)]
    return [
        [s for micro in batch.micro_batches if not micro.is_padding for s in micro.batch]
        for batch in batches
    ]


def small():
    return InterleavedMixture(
        [Numbers("a", 30), Ordered("b", 11), Stream("c", 7)], [5.0, 3.0, 2.0], samples=50
    )


def test_training_resumes_with_the_same_samples():
    for steps in (0, 1, 6, 7, 8, 20):
        walked, jumped = loader(small(), 8), loader(small(), 8)
        steps_of(walked, steps)
        jumped.seek(walked.position)
        assert steps_of(jumped, 9) == steps_of(walked, 9)


def test_workers_do_not_change_a_mixture():
    with_workers = loader(small(), 4, accumulation=2, workers=2)
    assert steps_of(with_workers, 10) == steps_of(loader(small(), 4, accumulation=2), 10)
    with_workers.close()


def steps_here(steps, position):
    from overt.distributed import init_distributed

    world = init_distributed("cpu")
    own = loader(small(), 2, 4 // world.world_size, world.world_size, world.rank, workers=1)
    own.seek(Position(*position))
    samples = steps_of(own, steps)
    own.close()
    return samples


def test_two_processes_continue_with_the_mixture_of_one(run_processes):
    whole = loader(small(), 8)
    steps_of(whole, 5)
    position = tuple(whole.position)
    expected = steps_of(whole, 6)
    parts = run_processes(steps_here, 2, 6, position)
    for step in range(6):
        assert sorted(parts[0][step] + parts[1][step]) == sorted(expected[step])


def test_a_mixture_of_any_size_takes_next_to_no_memory():
    tracemalloc.start()
    try:
        mixture = InterleavedMixture([Numbers("a", 10**12), Numbers("b", 10**10)], [1.0, 2.0])
        positions = [*range(0, 10**12, 10**11), len(mixture) - 1]
        assert len({index for _, index, _ in interleaved(mixture, 3, 0, positions)}) == 11
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_a_sequential_source_is_warned_about_where_several_read_it():
    mixture = InterleavedMixture([Numbers("a", 5), Sequential("b", 5)], [1.0, 1.0])
    with pytest.warns(UserWarning, match="source 1 of the mixture .* each of the 4 loader"):
        mixture.check_split(batch_size=2, world_size=2, num_workers=2)
    outer = InterleavedMixture([mixture], [1.0])
    with pytest.warns(UserWarning, match="source 1"):
        outer.check_split(batch_size=2, world_size=1, num_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outer.check_split(batch_size=2, world_size=1, num_workers=0)


def test_positions_and_lengths_outside_of_the_range():
    mixture = InterleavedMixture([Numbers("a", 3)], [1.0])
    assert sorted(index for _, index, _ in interleaved(mixture)) == [0, 1, 2]
    assert mixture.sample(1, sample_rng(0, 0, 1)) == interleaved(mixture)[1]
    for position in (-1, 3):
        with pytest.raises(IndexError):
            mixture.sample(position, np.random.default_rng(0))
    with pytest.raises(DataError, match="samples=0 of a mixture"):
        InterleavedMixture([Numbers("a", 3)], [1.0], samples=0)
    assert len(order_of(mixture, 0, 0)) == 3
