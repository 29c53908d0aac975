"""Tensors in nested dataclasses, dicts, lists and tuples: the one walker over batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Batch = TypeVar("Batch")


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of `value` with `function` applied to every tensor in it."""
    if isinstance(value, Tensor):
        return function(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(
            value, **{name: map_tensors(getattr(value, name), function) for name in names}
        )
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, function) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, function) for item in value)
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in `value`, in the order in which `map_tensors` visits them."""
    return (leaf for leaf in _leaves(value) if isinstance(leaf, Tensor))


def stays_on_device(value: Any) -> bool:
    """Return whether there is a module in `value`, or a tensor that is not on the CPU."""
    return any(
        isinstance(leaf, nn.Module) or (isinstance(leaf, Tensor) and leaf.device.type != "cpu")
        for leaf in _leaves(value)
    )


def _leaves(value: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def concatenated(batches: Sequence[Batch]) -> Batch:
    """Return one batch of several: each tensor joined along its first dimension."""
    columns = zip(*(tensors_in(batch) for batch in batches), strict=True)
    joined = iter([torch.cat(column) for column in columns])
    result: Batch = map_tensors(batches[0], lambda _: next(joined))
    return result
