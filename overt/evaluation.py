"""Evaluation over all processes: each sample once, and the same numbers for any number of them.

Every process scores its own share; the rows are gathered by sample and averaged in sample order,
so that not even rounding depends on how many processes there were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from overt.distributed import World, gather_objects

Row = dict[str, float]
NamedRow = dict[str, Any]  # a Row with the `name` of its sample


def score_each(world: World, count: int, score: Callable[[int], Row]) -> list[Row]:
    """Score samples 0 to `count` - 1, this process its share; all rows in order, everywhere."""
    own = {index: score(index) for index in range(world.rank, count, world.world_size)}
    rows: dict[int, Row] = {}
    for part in gather_objects(own):
        rows.update(part)
    assert sorted(rows) == list(range(count)), "a sample was scored twice or not at all"
    return [rows[index] for index in range(count)]


def mean_of_rows(rows: list[Row]) -> Row:
    """The mean of each number over the samples that have it.

    A sample without a value (NaN: a video with no visible point, say) does not count for that
    number; a number that no sample has is NaN.
    """
    means: Row = {}
    for name in sorted({name for row in rows for name in row}):
        values = [row[name] for row in rows if not math.isnan(row.get(name, math.nan))]
        means[name] = math.fsum(values) / len(values) if values else math.nan
    return means


def summarize(rows: Sequence[NamedRow]) -> Row:
    """The means of named rows; `left_out` counts those without any value, where there are such."""
    numbers = [_numbers(row) for row in rows]
    left_out = sum(all(map(math.isnan, row.values())) for row in numbers)
    return mean_of_rows(numbers) | ({"left_out": float(left_out)} if left_out else {})


def _numbers(row: Mapping[str, Any]) -> Row:
    return {name: float(value) for name, value in row.items() if name != "name"}
