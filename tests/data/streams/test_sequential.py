"""Tar shards in sequence: exact resumes, the same global batches for any world size."""

import gzip
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.config.batch import BatchPlan
from overt.data.streams import TarStream
from overt.data.streams.sequential import shuffle
from overt.distributed import World
from overt.engine.loader import StepLoader
from overt.engine.order import Position
from overt.errors import ConfigError, DataError

from .shard_files import Forward, number_of, open_forward, write_shards

COUNTS = (5,) * 8  # 40 samples
RNG = np.random.default_rng(0)


def stream(pattern: str, **options: Any) -> TarStream:
    defaults = {"samples": 40, "lanes": 8, "block": 1, "buffer": 3, "opener": open_forward}
    return TarStream(pattern, transform=number_of, **defaults | options)


def loader(
    samples: Any, batch: int, accumulation: int = 1, size: int = 1, rank: int = 0, workers: int = 0
) -> StepLoader:
    plan, world = BatchPlan(batch, accumulation, size), World(rank, size, rank, torch.device("cpu"))
    return StepLoader(samples, list, plan, world, seed=6, drop_last=False, num_workers=workers)


def steps_of(loader: StepLoader, steps: int) -> list[list[Any]]:
    batches = [loader.next_step() for _ in range(steps)]
    return [
        [sample for micro in batch.micro_batches if not micro.is_padding for sample in micro.batch]
        for batch in batches
    ]


def numbers(samples: TarStream, epoch: int = 0, seed: int = 0) -> list[int]:
    return [samples.sample_at(p, epoch, seed, RNG)[0] for p in range(len(samples))]


# --- the order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_epoch_of_even_lanes_holds_every_sample_once(mode: str, tmp_path: Path) -> None:
    samples = stream(write_shards(tmp_path, COUNTS, mode))
    epochs = [numbers(samples, epoch, seed) for epoch in range(3) for seed in range(2)]
    assert all(sorted(epoch) == list(range(40)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 6
    assert numbers(samples, 0, 0) == epochs[0]


def test_a_lane_that_runs_out_begins_again(tmp_path: Path) -> None:
    """Shards of 3 and 20 samples: the short lane is repeated, the long one not finished."""
    samples = stream(write_shards(tmp_path, [3, 20]), lanes=2, samples=24)
    counts = Counter(numbers(samples))
    assert sum(counts.values()) == 24
    assert [counts[number] for number in range(3)] == [4, 4, 4]
    assert all(counts[number] <= 1 for number in range(3, 23))


def test_samples_are_shuffled_within_a_lane(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, [40])
    plain = numbers(stream(pattern, lanes=1, buffer=1))
    assert plain == list(range(40))
    shuffled = numbers(stream(pattern, lanes=1, buffer=10))
    assert shuffled != plain
    # Nothing comes earlier than a buffer of ten allows.
    assert all(number <= position + 10 for position, number in enumerate(shuffled))


@given(count=st.integers(0, 60), size=st.integers(1, 20), seed=st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_a_shuffle_buffer_gives_every_item_once(count: int, size: int, seed: int) -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for item in range(count):
            read.append(item)
            yield item

    order = []
    for item in shuffle(items(), size, np.random.default_rng(seed)):
        order.append(item)
        assert len(read) - len(order) <= size  # held at a time
    assert sorted(order) == list(range(count))


# --- promises of training -------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 4, 5, 9, 13])
def test_a_resume_reads_the_same_samples(steps: int, tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, COUNTS)
    walked, jumped = loader(stream(pattern), 8), loader(stream(pattern), 8)
    steps_of(walked, steps)
    jumped.seek(walked.position)
    assert steps_of(jumped, 8) == steps_of(walked, 8)


@pytest.mark.parametrize(
    ("batch", "accumulation", "size", "workers"),
    [(8, 1, 1, 0), (2, 4, 1, 2), (4, 1, 2, 1), (2, 2, 2, 2), (1, 8, 1, 2), (1, 1, 8, 0)],
)
def test_every_split_gives_the_same_global_batches(
    batch: int, accumulation: int, size: int, workers: int, tmp_path: Path
) -> None:
    pattern = write_shards(tmp_path, COUNTS)
    expected = steps_of(loader(stream(pattern), 8), 11)
    loaders = [
        loader(stream(pattern), batch, accumulation, size, rank, workers) for rank in range(size)
    ]
    ranks = [steps_of(each, 11) for each in loaders]
    for each in loaders:
        each.close()
    for step in range(11):
        assert sorted(s for rank in ranks for s in rank[step]) == sorted(expected[step])


def steps_here(pattern: str, steps: int, position: tuple[int, int]) -> list[list[Any]]:
    from overt.distributed import init_distributed

    world = init_distributed("cpu")
    own = loader(stream(pattern), 2, 4 // world.world_size, world.world_size, world.rank, workers=2)
    own.seek(Position(*position))
    samples = steps_of(own, steps)
    own.close()
    return samples


def test_two_processes_continue_with_the_samples_of_one(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    pattern = write_shards(tmp_path, COUNTS, "w:gz")
    whole = loader(stream(pattern), 8)
    steps_of(whole, 2)
    position = tuple(whole.position)
    expected = steps_of(whole, 7)
    ranks = run_processes(steps_here, 2, pattern, 7, position)
    for step in range(7):
        assert sorted(ranks[0][step] + ranks[1][step]) == sorted(expected[step])


OPENED: list[Forward] = []


def open_counted(shard: str) -> Any:
    OPENED.append(Forward(shard))
    return OPENED[-1]


def test_every_shard_is_read_by_one_rank(tmp_path: Path) -> None:
    """With a split that divides the lanes, two ranks open eight shards together, not sixteen."""
    pattern = write_shards(tmp_path, COUNTS)
    shards_of = []
    for rank in range(2):
        OPENED.clear()
        own = loader(stream(pattern, opener=open_counted), 2, 2, 2, rank)
        steps_of(own, 5)  # an epoch
        shards_of.append({file.file.name for file in OPENED})
        assert len(OPENED) == 4
    assert not shards_of[0] & shards_of[1]
    steps_of(own, 1)
    assert all(file.closed for file in OPENED[:4])  # by the next epoch


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ((3, 1, 0), "x 3 block.s. of 1 in a micro-batch do not divide .* use a larger block"),
        (
            (1, 3, 0),
            r"8 lanes, but 3 rank\(s\) x 1 loader process\(es\) x 1 .* use 1 or 2 or 4 or 8",
        ),
        ((2, 2, 3), r"2 rank\(s\) x 3 loader .* x 2 .* use training\.num_workers=1 or 2"),
        ((1, 16, 0), "16 rank.* use 1 or 2 or 4 or 8 rank"),
    ],
)
def test_a_split_that_reads_lanes_twice_is_refused(
    split: tuple[int, int, int], message: str, tmp_path: Path
) -> None:
    samples = stream(write_shards(tmp_path, COUNTS))
    with pytest.raises(ConfigError, match=message):
        samples.check_split(*split)
    if split[1] == 3:  # before anything is read
        with pytest.raises(ConfigError, match="do not divide"):
            loader(samples, 1, size=3)


def test_blocks_let_few_lanes_serve_large_batches(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, COUNTS)
    samples = stream(pattern, block=4, lanes=4, samples=32)
    samples.check_split(batch_size=8, world_size=2, num_workers=1)
    with pytest.raises(ConfigError, match=r"block=4, but training\.batch_size=6"):
        samples.check_split(batch_size=6, world_size=1, num_workers=0)
    expected = steps_of(loader(samples, 16), 4)
    ranks = [steps_of(loader(stream(pattern, block=4, lanes=4, samples=32), 4, 2, 2, r), 4)
             for r in range(2)]  # fmt: skip
    for step in range(4):
        assert sorted(ranks[0][step] + ranks[1][step]) == sorted(expected[step])


def test_positions_may_go_back(tmp_path: Path) -> None:
    samples = stream(write_shards(tmp_path, COUNTS))
    forward = numbers(samples)
    backward = [samples.sample_at(p, 0, 0, RNG)[0] for p in reversed(range(40))]
    assert forward == backward[::-1]
    copy = pickle.loads(pickle.dumps(samples))  # for a loader process; files stay here
    assert copy.sample(17, RNG)[0] == forward[17]
    for position in (-1, 40):
        with pytest.raises(IndexError):
            samples.sample(position, RNG)


# --- refusals -------------------------------------------------------------------------------------


def test_impossible_settings_are_refused(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, [2, 2])
    for name in ("samples", "block", "buffer"):
        with pytest.raises(DataError, match=f"{name}=0; expected 1 or more"):
            stream(pattern, **{"lanes": 1, name: 0})
    with pytest.raises(DataError, match="lanes=3; expected 1 to 2, a shard or more for each"):
        stream(pattern, lanes=3)


def test_missing_fields_are_named(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, [3])
    samples = TarStream(pattern, samples=3, lanes=1, fields=["cls", "jpg"])
    with pytest.raises(DataError, match=r"the sample 00000\d has no jpg; it has cls, json"):
        samples.sample(0, RNG)
    only = TarStream(pattern, samples=3, lanes=1, fields=["cls"]).sample(0, RNG)
    assert set(only) == {"__key__", "__shard__", "cls"}


@pytest.mark.parametrize("kind", ["tar", "gzip", "checksum", "missing"])
def test_damage_is_named_every_time(kind: str, tmp_path: Path) -> None:
    pattern = write_shards(tmp_path, [30], "w:gz" if kind in ("gzip", "checksum") else "w")
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    if kind == "tar":
        path.write_bytes(content[:5000])
    elif kind == "gzip":
        path.write_bytes(content[:-200])
    elif kind == "checksum":
        plain = gzip.decompress(content)
        path.write_bytes(gzip.compress(plain)[:-8] + b"\x01" * 8)
    else:
        path.unlink()
    samples = stream(pattern, lanes=1, samples=30, buffer=100)
    message = (
        "cannot be opened" if kind == "missing" else r", byte \d+: .*(expected|cannot be read)"
    )
    for _ in range(2):  # not a StopIteration the second time
        with pytest.raises(DataError, match=rf"train-000\.tar.*{message}"):
            samples.sample_at(0, 0, 0, RNG)
