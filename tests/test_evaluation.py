"""overt/evaluation.py: each sample once, whatever the number of processes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from overt.distributed import World, init_distributed
from overt.errors import DataError
from overt.evaluation import (
    mean_of_rows,
    own_batches,
    read_ahead,
    score_batches,
    score_each,
    summarize,
    with_names,
)

ALONE = World(0, 1, 0, torch.device("cpu"))
COUNTS = (0, 1, 2, 5)  # with three processes some have nothing to do


def scores_for_all_counts() -> dict[str, Any]:
    world = init_distributed("cpu")
    seen: list[int] = []

    def score(index: int) -> dict[str, float]:
        seen.append(index)
        return {"value": 0.1 * index, "rank": float(index % world.world_size)}

    found = [score_each(world, count, score) for count in COUNTS]
    values = [[row["value"] for row in rows] for rows in found]
    return {
        "values": values,
        "means": [mean_of_rows(rows).get("value") for rows in found],
        "seen": seen,
    }


@pytest.mark.parametrize("size", [2, 3])
def test_rows_and_means_are_those_of_one_process(
    size: int, run_processes: Callable[..., list[Any]]
) -> None:
    alone = scores_for_all_counts()
    answers = run_processes(scores_for_all_counts, size)
    for answer in answers:
        assert answer["values"] == alone["values"]
        assert answer["means"] == alone["means"]  # to the last bit
    # No sample was scored by two of them.
    assert sorted(index for answer in answers for index in answer["seen"]) == sorted(alone["seen"])


def test_rows_come_in_the_order_of_the_samples() -> None:
    assert score_each(ALONE, 3, lambda index: {"i": index}) == [{"i": 0}, {"i": 1}, {"i": 2}]


def unreadable(batch: range) -> list[int]:
    raise DataError("mask 3.png is truncated; copy it again")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_batch_arrives_as_one_clean_message(workers: int) -> None:
    with pytest.raises(DataError) as stopped:
        list(read_ahead(unreadable, own_batches(ALONE, 4, 2), workers))
    assert str(stopped.value) == "mask 3.png is truncated; copy it again"


def test_batches_are_scored_once_each() -> None:
    seen: list[range] = []

    def score(indices: range) -> list[dict[str, float]]:
        seen.append(indices)
        return [{"index": float(index)} for index in indices]

    rows = score_batches(ALONE, 7, 3, score)
    assert [row["index"] for row in rows] == list(range(7))
    assert seen == [range(3), range(3, 6), range(6, 7)]


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 6))
def test_which_samples_share_a_batch_does_not_depend_on_the_world_size(
    count: int, size: int, world_size: int
) -> None:
    worlds = [World(rank, world_size, rank, torch.device("cpu")) for rank in range(world_size)]
    dealt = [own_batches(world, count, size) for world in worlds]
    together = sorted((batch for batches in dealt for batch in batches), key=lambda one: one.start)
    assert together == own_batches(ALONE, count, size)
    assert [index for batch in together for index in batch] == list(range(count))
    counts = [len(batches) for batches in dealt]
    assert max(counts) - min(counts) <= 1


def test_a_score_for_each_index_is_needed() -> None:
    with pytest.raises(ValueError, match="zip"):
        score_batches(ALONE, 3, 2, lambda indices: [{}])
    with pytest.raises(ValueError, match="zip"):
        with_names(["a"], [])
    assert with_names(["a"], [{"x": 1.0}]) == [{"name": "a", "x": 1.0}]


def test_a_sample_without_a_value_does_not_count() -> None:
    nan = math.nan
    means = mean_of_rows(
        [{"a": 1.0, "b": nan}, {"a": nan, "b": nan}, {"a": 4.0, "b": nan, "c": 2.0}]
    )
    assert means["a"] == 2.5
    assert math.isnan(means["b"])
    assert means["c"] == 2.0
    assert mean_of_rows([]) == {}


def test_named_rows_are_averaged_and_those_without_values_counted() -> None:
    nan = math.nan
    rows = [
        {"name": "one", "a": 1.0, "b": 3.0},
        {"name": "none", "a": nan, "b": nan},
        {"name": "two", "a": 2.0, "b": nan},
    ]
    assert summarize(rows) == {"a": 1.5, "b": 3.0, "left_out": 1.0}
    assert summarize(rows[:1]) == {"a": 1.0, "b": 3.0}
    assert summarize([]) == {}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.randoms())
def test_a_mean_does_not_depend_on_the_order(values: list[float], shuffler: Any) -> None:
    rows = [{"a": value} for value in values]
    mean = mean_of_rows(rows)
    shuffler.shuffle(rows)
    assert mean_of_rows(rows) == mean


def test_scores_at_thresholds_are_in_the_order_of_these() -> None:
    row = dict.fromkeys(["jaccard_16", "mean", "jaccard_2", "2", "jaccard", "jaccard_2_b"], 1.0)
    ordered = ["2", "jaccard", "jaccard_2", "jaccard_2_b", "jaccard_16", "mean"]
    assert list(mean_of_rows([row])) == ordered
