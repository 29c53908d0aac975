"""overt/nested.py: every tensor is visited once, in one order, whatever holds it."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from overt.nested import concatenated, map_tensors, stays_on_device, tensors_in


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class Batch:
    pair: Pair
    rows: list[Tensor]
    names: dict[str, Tensor | str]


def make_batch() -> Batch:
    numbers = [torch.tensor(float(index)) for index in range(5)]
    return Batch(Pair(*numbers[:2]), numbers[2:4], {"last": numbers[4], "text": "kept"})


def test_tensors_are_visited_in_one_order() -> None:
    visited: list[float] = []

    def record(tensor: Tensor) -> Tensor:
        visited.append(float(tensor))
        return tensor

    map_tensors(make_batch(), record)
    assert visited == [float(tensor) for tensor in tensors_in(make_batch())] == [0, 1, 2, 3, 4]


def test_a_mapped_value_keeps_its_types() -> None:
    mapped = map_tensors((make_batch(), None, 3), lambda tensor: tensor + 10)
    batch, nothing, number = mapped
    assert isinstance(mapped, tuple)
    assert (nothing, number) == (None, 3)
    assert isinstance(batch.pair, Pair)
    assert [float(tensor) for tensor in tensors_in(batch)] == [10, 11, 12, 13, 14]
    assert batch.names["text"] == "kept"


def test_batches_are_joined_along_the_first_dimension() -> None:
    parts = [Pair(torch.full((rows, 2), rows), torch.arange(rows)) for rows in (1, 2)]
    joined = concatenated(parts)
    assert isinstance(joined, Pair)
    assert joined.first.tolist() == [[1, 1], [2, 2], [2, 2]]
    assert joined.second.tolist() == [0, 0, 1]


def test_modules_and_tensors_of_a_device_stay_there() -> None:
    elsewhere = torch.empty(1, device="meta")
    assert stays_on_device({"cuda": nn.Linear(1, 1)})
    assert stays_on_device({"pair": Pair(torch.zeros(1), elsewhere)})
    assert not stays_on_device(make_batch())
    assert not stays_on_device("text")
