"""overt/engine/loader.py: the same samples for any split, from any position on."""

import ctypes
import os
import random
import resource
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from overt.config.batch import BatchPlan
from overt.data.rng import sample_rng
from overt.distributed import World
from overt.engine.loader import MicroBatch, StepBatch, StepLoader, global_counts, map_tensors
from overt.engine.order import START, Position, SampleId
from overt.errors import ConfigError, DataError
from overt.recipe import SampleSource

CPU = torch.device("cpu")


class Numbers:
    """Samples that show index and draw; counts how often it is read, in this process."""

    def __init__(self, length: int, broken: int | None = None) -> None:
        self.length, self.broken, self.reads = length, broken, 0

    def __len__(self) -> int:
        return self.length

    def sample(self, index: int, rng: np.random.Generator) -> tuple[int, float]:
        self.reads += 1
        if index == self.broken:
            raise DataError("file 00042.png is truncated; copy it again")
        return index, rng.random()


class Asked(Numbers):
    """Counts how often it is asked whether it is a stream."""

    questions = 0

    def __getattr__(self, name: str) -> None:
        self.questions += name == "sample_at"
        raise AttributeError(name)


def collate(samples: list[tuple[int, float]]) -> Tensor:
    return torch.tensor(samples, dtype=torch.float64)  # (B, 2) index and draw


def make(
    source: SampleSource,
    batch: int = 2,
    accumulation: int = 1,
    size: int = 1,
    rank: int = 0,
    seed: int = 0,
    drop_last: bool = False,
    workers: int = 0,
    collate: Callable[[list[tuple[int, float]]], Tensor] = collate,
) -> StepLoader:
    plan, world = BatchPlan(batch, accumulation, size), World(rank, size, rank, CPU)
    return StepLoader(
        source, collate, plan, world, seed=seed, drop_last=drop_last, num_workers=workers
    )


def rows(groups: list[StepBatch]) -> list[list[float]]:
    """Index and draw of every real sample, in the order they were handed out."""
    return [
        row
        for group in groups
        for micro in group.micro_batches
        if not micro.is_padding
        for row in micro.batch.tolist()
    ]


# --- the order ------------------------------------------------------------------------------------


SMALL = st.integers(1, 3)


@given(SMALL, SMALL, SMALL, st.integers(1, 40), st.integers(0, 5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_step_holds_the_same_samples_for_any_split(
    batch: int, accumulation: int, size: int, length: int, seed: int, drop_last: bool
) -> None:
    """So many processes, accumulated so often, against one process with one large batch."""
    units = batch * accumulation * size
    if drop_last and length < units:
        with pytest.raises(ConfigError, match="fewer than one global batch"):
            make(Numbers(length), units, drop_last=True)
        return
    whole = make(Numbers(length), units, seed=seed, drop_last=drop_last)
    parts = [
        make(Numbers(length), batch, accumulation, size, rank, seed, drop_last)
        for rank in range(size)
    ]
    for _ in range(2 * whole.steps_per_epoch + 1):  # over two ends of an epoch
        groups = [part.next_step() for part in parts]
        one = whole.next_step()
        assert sorted(rows(groups)) == sorted(rows([one]))
        assert {group.samples for group in groups} == {one.samples} == {len(rows([one]))}
        # Every process makes the same number of passes, or they would wait for each other.
        assert len({len(group.micro_batches) for group in groups}) == 1
        assert all(micro.ids for group in groups for micro in group.micro_batches)
        assert {part.position for part in parts} == {whole.position}


def test_a_sample_costs_no_question_what_its_source_is() -> None:
    """Asking a protocol takes 100 us in Python 3.11, as long as a small training step's work."""
    source = Asked(40)
    loader = make(source)
    loader.next_step()
    asked = source.questions
    for _ in range(5):
        loader.next_step()
    assert source.questions == asked


def test_an_epoch_holds_every_sample_once_and_the_next_draws_anew() -> None:
    loader = make(Numbers(7), batch=3)
    epochs = [rows([loader.next_step() for _ in range(3)]) for _ in range(2)]
    for epoch, samples in enumerate(epochs):
        assert sorted(index for index, _ in samples) == list(range(7))
        assert all(draw == sample_rng(0, epoch, int(index)).random() for index, draw in samples)
    assert not {draw for _, draw in epochs[0]} & {draw for _, draw in epochs[1]}


def test_a_short_last_group_leaves_a_process_idle() -> None:
    """5 samples for 2 x 2 x 1: the last group has one, for the first process."""
    groups = []
    for rank in range(2):
        loader = make(Numbers(5), batch=1, accumulation=2, size=2, rank=rank)
        assert loader.next_step().samples == 4
        groups.append(loader.next_step())
        assert loader.position == Position(1, 0)
    assert [len(group.micro_batches) for group in groups] == [1, 1]
    assert [group.micro_batches[0].is_padding for group in groups] == [False, True]
    assert [group.samples for group in groups] == [1, 1]


# --- the position ---------------------------------------------------------------------------------


@given(
    length=st.integers(1, 30),
    batch=st.integers(1, 8),
    steps=st.integers(0, 40),
    drop_last=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_seeking_is_the_same_as_having_been_there(
    length: int, batch: int, steps: int, drop_last: bool
) -> None:
    drop_last = drop_last and length >= batch
    walked, source = make(Numbers(length), batch, drop_last=drop_last), Numbers(length)
    for _ in range(steps):
        walked.next_step()
    jumped = make(source, batch, drop_last=drop_last)
    jumped.seek(walked.position)
    assert source.reads == 0
    group = jumped.next_step()
    assert source.reads == group.samples  # nothing was replayed
    assert rows([group]) == rows([walked.next_step()])
    assert jumped.position == walked.position


def test_seeking_far_costs_no_more_than_seeking_near() -> None:
    source = Numbers(10)
    loader = make(source, batch=2)
    loader.seek(Position(10**9, 4))
    loader.next_step()
    assert source.reads == 2
    assert loader.position == Position(10**9, 6)


def test_seeking_back_starts_anew_in_the_middle_of_a_run() -> None:
    loader = make(Numbers(9), workers=1)
    first = rows([loader.next_step() for _ in range(3)])
    loader.seek(START)
    assert rows([loader.next_step() for _ in range(3)]) == first
    loader.close()


def test_the_server_of_loader_processes_is_started_deaf_to_a_whole_terminal_or_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C while it imports was its traceback; processes inherit what is blocked."""
    masks = []
    start = forkserver.ensure_running

    def ensure_running() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        start()

    monkeypatch.setattr(forkserver, "ensure_running", ensure_running)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    loader = make(Numbers(4), workers=1)
    loader.next_step()
    loader.close()
    assert masks[0] >= {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


# --- processes that load --------------------------------------------------------------------------


def test_workers_do_not_change_the_samples() -> None:
    samples = []
    for workers in (0, 2):
        loader = make(Numbers(7), accumulation=2, workers=workers)
        samples.append(rows([loader.next_step() for _ in range(5)]))
        loader.close()
    assert samples[0] == samples[1]


# A process that loads with two workers, says who they are, and waits.
LOADS = """
import os, time
from overt.distributed import init_distributed
from overt.config.batch import BatchPlan
from overt.engine.loader import StepLoader

class Source:
    def __len__(self):
        return 100
    def sample(self, index, rng):
        return os.getpid()

if __name__ == "__main__":
    loader = StepLoader(Source(), list, BatchPlan(2, 1, 1), init_distributed("cpu"),
                        seed=0, drop_last=True, num_workers=2)
    groups = [loader.next_step() for _ in range(8)]
    print(*{pid for group in groups for pid in group.micro_batches[0].batch}, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd_open")
def test_loader_processes_end_with_a_training_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "loads.py"
    script.write_text(LOADS)
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        workers = [int(word) for word in child.stdout.readline().split()]
        child.kill()
    assert workers
    for worker in workers:  # ends the test by its time limit where one lives on
        with suppress(ProcessLookupError):
            select.select([os.pidfd_open(worker)], [], [])


def test_loading_draws_from_no_global_generator() -> None:
    def states() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    for workers in (0, 1):
        before = states()
        loader = make(Numbers(7), workers=workers)
        for _ in range(5):
            loader.next_step()
        loader.close()
        assert states() == before


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_sample_arrives_as_one_clean_message(workers: int) -> None:
    loader = make(Numbers(6, broken=4), batch=6, workers=workers)
    with pytest.raises(DataError) as stopped:
        loader.next_step()
    loader.close()
    assert str(stopped.value) == (
        "sample 4 of the training data cannot be read: file 00042.png is truncated; copy it again"
    )


class Mistaken(Numbers):
    """Its own code fails at one sample."""

    def sample(self, index: int, rng: np.random.Generator) -> tuple[int, float]:
        if index == 4:
            raise ValueError("not a number: x")
        return super().sample(index, rng)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mistake_in_a_source_comes_with_the_sample_it_was_made_at(workers: int) -> None:
    loader = make(Mistaken(6), batch=6, workers=workers)
    with pytest.raises(ValueError, match="not a number: x") as stopped:
        loader.next_step()
    loader.close()
    shown = "".join(traceback.format_exception(stopped.value))
    assert "while reading sample 4 of epoch 0" in shown


def refuse(samples: list[tuple[int, float]]) -> Tensor:
    raise DataError("images of one size are needed")


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_make_no_batch_arrive_as_one_clean_message(workers: int) -> None:
    loader = make(Numbers(6), batch=6, workers=workers, collate=refuse)
    with pytest.raises(DataError) as stopped:
        loader.next_step()
    loader.close()
    assert str(stopped.value) == "images of one size are needed"


class PageFaults:
    """Samples say how many pages of memory were new while large arrays came and went."""

    def __len__(self) -> int:
        return 8

    def sample(self, index: int, rng: np.random.Generator) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(2):
            together = [np.ones(3 * 2**20) for _ in range(4)]  # 96 MiB, 24,576 pages
            del together
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_a_loader_process_uses_its_memory_again() -> None:
    loader = make(PageFaults(), batch=1, workers=1)
    counts = [loader.next_step().micro_batches[0].batch[0] for _ in range(2)]
    loader.close()
    assert counts[-1] < 1000


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(DataError, match=r"empty; check data\.root"):
        make(Numbers(0))


# --- batches --------------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Nested:
    values: Any
    name: str


def test_map_tensors_reaches_every_tensor_and_keeps_the_rest() -> None:
    value = Nested({"a": [torch.ones(2), (torch.zeros(1), 3)], "b": Pair(torch.ones(1), None)}, "x")
    mapped = map_tensors(value, lambda tensor: tensor + 1)
    assert isinstance(mapped, Nested)
    assert mapped.name == "x"
    assert torch.equal(mapped.values["a"][0], torch.full((2,), 2.0))
    assert torch.equal(mapped.values["a"][1][0], torch.ones(1))
    assert mapped.values["a"][1][1] == 3
    pair = mapped.values["b"]
    assert isinstance(pair, Pair)
    assert torch.equal(pair.left, torch.full((1,), 2.0))
    assert pair.right is None


class Counting:
    def counts(self, batch: Tensor) -> dict[str, Tensor]:
        return {"entries": batch.sum(), "per_level": torch.stack([batch.min(), batch.max()])}


def micro(values: list[float], is_padding: bool = False) -> MicroBatch:
    return MicroBatch((SampleId(0, 0, is_padding),), torch.tensor(values), is_padding)


def test_counts_add_up_over_micro_batches_and_padding_counts_nothing() -> None:
    group = StepBatch([micro([1.0, 2.0]), micro([3.0, 4.0]), micro([100.0], True)], 4, 0.0)
    recipe: Any = Counting()
    counts = global_counts(recipe, group, CPU)
    assert {name: value.tolist() for name, value in counts.items()} == {
        "samples": 4.0,
        "entries": 10.0,
        "per_level": [4.0, 6.0],
    }

    class Plain:
        def counts(self, batch: object) -> dict[str, torch.Tensor]:
            return {}

    plain: Any = Plain()  # a recipe that names no counts
    assert global_counts(plain, group, CPU) == {"samples": torch.tensor(4.0)}


def test_a_count_that_is_no_tensor_is_named() -> None:
    class OfNumbers:
        def counts(self, batch: object) -> dict[str, int]:
            return {"points": 4}

    recipe: Any = OfNumbers()
    batch = StepBatch([micro([1.0, 2.0])], 2, 0.0)
    with pytest.raises(ConfigError, match=r"counts returned a dict of 'points': 4; expected"):
        global_counts(recipe, batch, CPU)


def counts_here() -> dict[str, Any]:
    from overt.distributed import init_distributed

    world = init_distributed("cpu")
    group = StepBatch([micro([1.0 + world.rank]), micro([5.0], world.rank == 1)], 3, 0.0)
    recipe: Any = Counting()
    return {name: value.tolist() for name, value in global_counts(recipe, group, CPU).items()}


def test_counts_add_up_over_processes(run_processes: Callable[..., list[Any]]) -> None:
    expected = {"samples": 3.0, "entries": 8.0, "per_level": [8.0, 8.0]}
    assert run_processes(counts_here, 2) == [expected, expected]
