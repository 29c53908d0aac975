"""overt/engine/order.py: steps of any source, and a position that is computed."""

import itertools
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.config.batch import BatchPlan
from overt.distributed import World
from overt.engine.loader import StepLoader
from overt.engine.order import START, Position, StepSampler, micro_batches, normalized
from overt.errors import DataError
from overt.recipe import SampleSource


class Numbers:
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def sample(self, index: int, rng: np.random.Generator) -> tuple[int, float]:
        return index, rng.random()


class Shards(Numbers):
    """A shard-wise order: shuffled shards of four, shuffled within."""

    def order(self, epoch: int, seed: int) -> list[int]:
        rng = np.random.default_rng([seed, epoch])
        shards = [list(range(first, min(first + 4, len(self)))) for first in range(0, len(self), 4)]
        return [int(i) for n in rng.permutation(len(shards)) for i in rng.permutation(shards[n])]


class Stream(Numbers):
    def sample_at(
        self, position: int, epoch: int, seed: int, rng: np.random.Generator
    ) -> tuple[int, float]:
        return position + 1000 * epoch + 10**6 * seed, rng.random()


KINDS = [Numbers, Shards, Stream]


def sampler(
    source: SampleSource, plan: BatchPlan, rank: int = 0, start: Position = START
) -> StepSampler:
    return StepSampler(source, seed=3, plan=plan, rank=rank, drop_last=False, start=start)


def loader(source: SampleSource, plan: BatchPlan, rank: int = 0, workers: int = 0) -> StepLoader:
    return StepLoader(
        source,
        list,
        plan,
        World(rank, plan.world_size, rank, torch.device("cpu")),
        seed=3,
        drop_last=False,
        num_workers=workers,
    )


def samples_of(loader: StepLoader, steps: int) -> list[list[Any]]:
    """What each step holds, in the order it was handed out."""
    return [
        [
            sample
            for micro in loader.next_step().micro_batches
            if not micro.is_padding
            for sample in micro.batch
        ]
        for _ in range(steps)
    ]


@pytest.mark.parametrize(
    ("drop_last", "offset", "expected"),
    [
        (False, 0, (3, 0)),
        (False, 8, (3, 8)),
        (False, 10, (4, 0)),
        (True, 4, (3, 4)),
        (True, 8, (4, 0)),
        (True, 10, (4, 0)),
    ],
)
def test_the_end_of_an_epoch_is_the_start_of_the_next(
    drop_last: bool, offset: int, expected: tuple[int, int]
) -> None:
    plan = BatchPlan(4, 1, 1)
    assert normalized(Position(3, offset), 10, plan, drop_last) == Position(*expected)


# --- a source's own order -------------------------------------------------------------------------


def test_steps_follow_the_order_of_the_source() -> None:
    source = Shards(10)
    steps = samples_of(loader(source, BatchPlan(4, 1, 1)), 6)
    indices = [index for step in steps for index, _ in step]
    assert indices == [*source.order(epoch=0, seed=3), *source.order(epoch=1, seed=3)]


def test_a_stream_is_asked_by_position_epoch_and_seed() -> None:
    steps = samples_of(loader(Stream(5), BatchPlan(2, 1, 1)), 6)
    numbers = [number for step in steps for number, _ in step]
    assert numbers == [3_000_000 + p + 1000 * epoch for epoch in range(2) for p in range(5)]


@given(
    kind=st.sampled_from(KINDS),
    batch=st.integers(1, 3),
    accumulation=st.integers(1, 3),
    size=st.integers(1, 3),
    length=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_a_step_holds_the_same_samples_for_any_split(
    kind: type[Numbers], batch: int, accumulation: int, size: int, length: int
) -> None:
    whole = loader(kind(length), BatchPlan(batch * accumulation * size, 1, 1))
    plan = BatchPlan(batch, accumulation, size)
    ranks = [loader(kind(length), plan, rank) for rank in range(size)]
    steps = 2 * whole.steps_per_epoch + 1
    expected = samples_of(whole, steps)
    parts = [samples_of(rank, steps) for rank in ranks]
    for step in range(steps):
        together = [sample for part in parts for sample in part[step]]
        assert sorted(together) == sorted(expected[step])


@given(kind=st.sampled_from(KINDS), length=st.integers(1, 30), steps=st.integers(0, 20))
@settings(max_examples=40, deadline=None)
def test_a_resumed_run_reads_the_same_samples(kind: type[Numbers], length: int, steps: int) -> None:
    walked, jumped = (loader(kind(length), BatchPlan(4, 1, 1)) for _ in range(2))
    samples_of(walked, steps)
    jumped.seek(walked.position)
    assert samples_of(jumped, 3) == samples_of(walked, 3)
    assert jumped.position == walked.position


def steps_here(kind: type[Numbers], steps: int, position: Position) -> list[list[Any]]:
    from overt.distributed import init_distributed

    world = init_distributed("cpu")
    plan = BatchPlan(2, 4 // world.world_size, world.world_size)
    with_workers = loader(kind(21), plan, world.rank, workers=2)
    with_workers.seek(position)
    samples = samples_of(with_workers, steps)
    with_workers.close()
    return samples


@pytest.mark.parametrize("kind", [Shards, Stream])
def test_two_processes_continue_with_the_samples_of_one(
    kind: type[Numbers], run_processes: Callable[..., list[Any]]
) -> None:
    whole = loader(kind(21), BatchPlan(8, 1, 1))
    samples_of(whole, 1)
    position = whole.position
    expected = samples_of(whole, 5)
    parts = run_processes(steps_here, 2, kind, 5, position)
    for step in range(5):
        assert sorted(parts[0][step] + parts[1][step]) == sorted(expected[step])


class Wrong(Numbers):
    def __init__(self, indices: Any) -> None:
        super().__init__(4)
        self.indices = indices

    def order(self, epoch: int, seed: int) -> Any:
        return self.indices


@pytest.mark.parametrize(
    "indices", [[0, 1, 2, 4], [0, -1, 2, 3], [0.0, 1.0, 2.0, 3.0], [[0], [1], [2], [3]]]
)
def test_a_wrong_order_is_refused(indices: Any) -> None:
    with pytest.raises(
        DataError,
        match=r"(?s)Wrong\.order\(epoch=0\) gives .* for the positions 0 to 3; expected 4 integers",
    ):
        loader(Wrong(indices), BatchPlan(4, 1, 1)).next_step()


# --- any length -----------------------------------------------------------------------------------


def test_a_source_of_10_to_the_12_samples_starts_at_once() -> None:
    """Nothing grows with the length of a source: here 7 TiB were asked for."""
    plan = BatchPlan(2, 2, 2)
    tracemalloc.start()
    try:
        both = [loader(Numbers(10**12), plan, rank) for rank in range(2)]
        for rank in both:
            rank.seek(Position(5, 10**12 - 12))
        steps = [samples_of(rank, 4) for rank in both]  # over the end of the epoch
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()
    sizes = [len(steps[0][step]) + len(steps[1][step]) for step in range(4)]
    assert sizes == [8, 4, 8, 8]
    assert both[0].position == Position(6, 16)
    whole = loader(Numbers(10**12), BatchPlan(8, 1, 1))
    whole.seek(Position(5, 10**12 - 12))
    for step, expected in enumerate(samples_of(whole, 4)):
        assert sorted(steps[0][step] + steps[1][step]) == sorted(expected)


def test_steps_of_a_long_epoch_are_counted_exactly() -> None:
    """Beyond 2^53 a float has no room for the last digits."""
    length = 2**60 + 1
    plan = BatchPlan(2, 1, 1)
    assert loader(Numbers(length), plan).steps_per_epoch == 2**59 + 1
    assert micro_batches(length, plan) == 2**59 + 1
    first = next(iter(sampler(Numbers(length), plan, start=Position(0, length - 1))))
    assert len(first) == 1


def test_a_long_order_is_the_same_in_any_cut() -> None:
    source = Numbers(10**12)
    whole = next(iter(sampler(source, BatchPlan(64, 1, 1))))
    plan = BatchPlan(8, 2, 4)
    ranks = [list(itertools.islice(sampler(source, plan, rank), 2)) for rank in range(4)]
    assert [sample for micro in (0, 1) for rank in ranks for sample in rank[micro]] == whole
