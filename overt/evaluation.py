"""Evaluation over all ranks: each sample once, and the same numbers for any world size.

Batches are cut from the indices alone and dealt out to the ranks whole, rows are gathered by sample
and averaged in sample order. So not even rounding depends on the world size, as long as every rank
computes with the same kernels: the same kind of device and, on CPUs, the same number of threads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from overt.data.workers import loader_context
from overt.distributed import World, gather_objects
from overt.errors import DataError
from overt.progress import each

Value = TypeVar("Value")
Indices = TypeVar("Indices")  # of a batch
Row = dict[str, float]
NamedRow = dict[str, Any]  # a Row with the `name` of its sample


def own_batches(world: World, count: int, size: int) -> list[range]:
    """This rank's batches of the indices 0 to `count` - 1; which batches there are depends on
    `count` and `size` alone."""
    starts = range(world.rank * size, count, world.world_size * size)
    return [range(start, min(start + size, count)) for start in starts]


def read_ahead(
    read: Callable[[Indices], Value], batches: Sequence[Indices], workers: int
) -> Iterator[Value]:
    """Yield `read(batch)` of every batch in order, read by loader processes where `workers` > 0."""
    if workers == 0 or len(batches) < 2:
        yield from map(read, batches)
        return
    from torch.utils.data import DataLoader

    dataset: Any = _Batches(read, batches)
    context = loader_context(__name__)
    loader = DataLoader(
        dataset,
        batch_size=None,  # a batch is an item
        num_workers=min(workers, len(batches)),
        worker_init_fn=_one_thread,
        multiprocessing_context=context,
    )
    for value in context.read(loader):
        if isinstance(value, DataError):
            raise value
        yield value


class _Batches:
    """The batches as items of a data set."""

    def __init__(self, read: Callable[[Any], Any], batches: Sequence[Any]) -> None:
        self.read, self.batches = read, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        try:
            return self.read(self.batches[index])
        except DataError as error:  # raised here, torch would add the traceback of this process
            return error


def _one_thread(worker: int) -> None:
    import torch

    torch.set_num_threads(1)  # many processes share the cores


def score_batches(
    world: World, count: int, size: int, score: Callable[[range], Sequence[Row]]
) -> list[Row]:
    """Score samples 0 to `count` - 1 in batches of `size`; all rows in order, on every rank.

    `score` gets the indices of one of this rank's batches and returns a row for each.
    """
    local_rows: dict[int, Row] = {}
    for indices in each(own_batches(world, count, size), "scoring"):
        local_rows.update(zip(indices, score(indices), strict=True))
    rows: dict[int, Row] = {}
    for rows_of_rank in gather_objects(local_rows):
        rows.update(rows_of_rank)
    assert sorted(rows) == list(range(count)), "a sample was scored twice or not at all"
    return [rows[index] for index in range(count)]


def score_each(world: World, count: int, score: Callable[[int], Row]) -> list[Row]:
    """`score_batches` for what is scored one sample at a time."""
    return score_batches(world, count, 1, lambda indices: [score(index) for index in indices])


def mean_of_rows(rows: Sequence[Row]) -> Row:
    """The mean of each number over the samples that have it; names in order, 2 before 16.

    A sample without a value (NaN: a video with no visible point, say) does not count for that
    number; a number that no sample has is NaN.
    """
    means: Row = {}
    for name in sorted({name for row in rows for name in row}, key=_in_order):
        values = [row[name] for row in rows if not math.isnan(row.get(name, math.nan))]
        means[name] = math.fsum(values) / len(values) if values else math.nan
    return means


def _in_order(name: str) -> list[str | int]:
    """Split a name at its numbers, which then compare as numbers."""
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)]


def with_names(names: Sequence[str], rows: Sequence[Row]) -> list[NamedRow]:
    """Each row with the name of its sample in front."""
    return [{"name": name, **row} for name, row in zip(names, rows, strict=True)]


def summarize(rows: Sequence[NamedRow]) -> Row:
    """The means of named rows; `left_out` counts those without any value, where there are such."""
    numbers = [_numbers(row) for row in rows]
    left_out = sum(all(map(math.isnan, row.values())) for row in numbers)
    return mean_of_rows(numbers) | ({"left_out": float(left_out)} if left_out else {})


def _numbers(row: Mapping[str, Any]) -> Row:
    return {name: float(value) for name, value in row.items() if name != "name"}
